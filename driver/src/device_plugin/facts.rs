//! What the kernel knows of a device: whether its nodes exist, where it is, and how much memory it has.

use std::{
    fs::{self, Metadata},
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::{Path, PathBuf},
};

use cdi::{DeviceNode, NodeType};
use rustix::fs::{major, minor};

/// The major number of the nodes of NVIDIA's GPUs (devices.txt of the kernel).
const NVIDIA: i64 = 195;

/// Facts about one device.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Facts {
    /// Why the device cannot be used.
    pub problem: Option<String>,
    /// Its address on the PCI bus, as in `0000:3b:00.0`.
    pub pci_bus_id: Option<String>,
    /// The ids of its vendor and its model on the PCI bus, as in `10de:2330`.
    pub pci_id: Option<String>,
    /// The NUMA node that it belongs to.
    pub numa_node: Option<i64>,
    /// Its memory in MiB.
    pub memory_mib: Option<i64>,
}

/// Where the kernel's file systems are mounted.
#[derive(Debug, Clone, Copy)]
pub struct KernelFiles<'a> {
    pub sysfs: &'a Path,
    pub proc: &'a Path,
}

/// The facts about a device with these nodes. Blocks on the file system.
pub fn of<'a>(nodes: impl Iterator<Item = &'a DeviceNode> + Clone, kernel: KernelFiles<'_>) -> Facts {
    let problem = nodes.clone().find_map(problem);
    let Some((pci_bus_id, directory)) = nodes.into_iter().find_map(|node| pci_device(node, kernel)) else {
        return Facts { problem, ..Facts::default() };
    };
    let text = |file: &str| Some(fs::read_to_string(directory.join(file)).ok()?.trim().to_owned());
    let number = |file: &str| text(file)?.parse::<i64>().ok();
    let id = |file: &str| text(file)?.strip_prefix("0x").map(str::to_owned);
    Facts {
        problem,
        pci_bus_id: Some(pci_bus_id),
        pci_id: id("vendor").zip(id("device")).map(|(vendor, model)| format!("{vendor}:{model}")),
        // The kernel writes -1 for a device without a node.
        numa_node: number("numa_node").filter(|node| *node >= 0),
        memory_mib: number("mem_info_vram_total").map(|bytes| bytes >> 20),
    }
}

/// Why a node of a device cannot be given to a container. A node with type and number needs no file, and a FIFO has no
/// number.
pub fn problem(node: &DeviceNode) -> Option<String> {
    if node.node_type.is_some_and(|kind| node.major != 0 || kind == NodeType::Fifo) {
        return None;
    }
    let path = node.path_on_node();
    match fs::metadata(path) {
        Ok(found) if kind(&found).is_some() || found.file_type().is_fifo() => None,
        Ok(_) => Some(format!("{path} is not a device node")),
        Err(error) => Some(format!("{path}: {error}")),
    }
}

/// The directory of sysfs for nodes of this type: `char` or `block`.
fn kind(file: &Metadata) -> Option<&'static str> {
    match file.file_type() {
        kind if kind.is_char_device() => Some("char"),
        kind if kind.is_block_device() => Some("block"),
        _ => None,
    }
}

/// The PCI device that a node belongs to: its address, and its directory in sysfs.
fn pci_device(node: &DeviceNode, kernel: KernelFiles<'_>) -> Option<(String, PathBuf)> {
    let found = fs::metadata(node.path_on_node()).ok();
    let (kind, major, minor) = match (node.major, node.node_type) {
        (0, _) | (_, None) => {
            let found = found?;
            (kind(&found)?, i64::from(major(found.rdev())), i64::from(minor(found.rdev())))
        }
        (major, Some(NodeType::Block)) => ("block", major, node.minor),
        (major, Some(_)) => ("char", major, node.minor),
    };
    if (kind, major) == ("char", NVIDIA) {
        let address = nvidia_address(minor, kernel.proc)?;
        let directory = kernel.sysfs.join("bus/pci/devices").join(&address);
        return Some((address, directory));
    }
    let device = fs::canonicalize(kernel.sysfs.join(format!("dev/{kind}/{major}:{minor}"))).ok()?;
    let directory = device
        .ancestors()
        .find(|directory| directory.file_name().and_then(|name| name.to_str()).is_some_and(is_pci_address))?;
    Some((directory.file_name()?.to_str()?.to_owned(), directory.to_owned()))
}

/// The PCI address of a GPU with this minor number. Nodes of NVIDIA's driver are not in sysfs; the driver's own files
/// name them (README of the driver, "Using the /proc File System Interface").
fn nvidia_address(number: i64, proc: &Path) -> Option<String> {
    let gpus = fs::read_dir(proc.join("driver/nvidia/gpus")).ok()?;
    let is_it = |gpu: &PathBuf| {
        let text = fs::read_to_string(gpu.join("information")).unwrap_or_default();
        let found = text.lines().find_map(|line| line.strip_prefix("Device Minor:")?.trim().parse().ok());
        found == Some(number)
    };
    let gpu = gpus.flatten().map(|entry| entry.path()).find(is_it)?;
    let address = gpu.file_name()?.to_str()?;
    is_pci_address(address).then(|| address.to_owned())
}

/// Whether a name has the form `0000:3b:00.0`.
fn is_pci_address(name: &str) -> bool {
    let lengths = [4, 2, 2, 1];
    let parts: Vec<&str> = name.split([':', '.']).collect();
    parts.len() == lengths.len()
        && name.matches(':').count() == 2
        && parts.iter().zip(lengths).all(|(part, length)| {
            part.len() >= length && part.len() <= 8 && part.bytes().all(|c| c.is_ascii_hexdigit())
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(path: &str) -> DeviceNode {
        DeviceNode { path: path.to_owned(), ..DeviceNode::default() }
    }

    #[test]
    fn a_device_is_found_in_sysfs_by_its_number() {
        let sysfs = tempfile::tempdir().unwrap();
        let pci = sysfs.path().join("devices/pci0000:00/0000:00:01.0/0000:3b:00.0");
        fs::create_dir_all(pci.join("drm/card7")).unwrap();
        fs::create_dir_all(sysfs.path().join("dev/char")).unwrap();
        fs::create_dir_all(sysfs.path().join("devices/virtual/mem/null")).unwrap();
        let link = |number: &str, target: &str| {
            std::os::unix::fs::symlink(sysfs.path().join(target), sysfs.path().join("dev/char").join(number)).unwrap();
        };
        link("226:7", "devices/pci0000:00/0000:00:01.0/0000:3b:00.0/drm/card7");
        link("1:3", "devices/virtual/mem/null");
        for (file, content) in [("numa_node", "1\n"), ("vendor", "0x1002\n"), ("device", "0x73bf\n")] {
            fs::write(pci.join(file), content).unwrap();
        }
        fs::write(pci.join("mem_info_vram_total"), "17163091968\n").unwrap();
        let card = DeviceNode { major: 226, minor: 7, node_type: Some(NodeType::Character), ..node("/dev/no/card7") };
        let kernel = KernelFiles { sysfs: sysfs.path(), proc: Path::new("/no/such") };
        let facts = of([&node("/dev/null"), &card].into_iter(), kernel);
        let expected = Facts {
            problem: None,
            pci_bus_id: Some("0000:3b:00.0".into()),
            pci_id: Some("1002:73bf".into()),
            numa_node: Some(1),
            memory_mib: Some(16368),
        };
        assert_eq!(facts, expected);
        fs::write(pci.join("numa_node"), "-1\n").unwrap();
        assert_eq!(of([&card].into_iter(), kernel).numa_node, None);
        assert_eq!(of([&node("/dev/null")].into_iter(), kernel), Facts::default());
        assert_eq!(of([].into_iter(), kernel), Facts::default(), "a device without nodes");
    }

    /// The text is that of a machine with one H100 and NVIDIA's driver 580, with other numbers.
    #[test]
    fn a_gpu_of_nvidia_is_found_by_the_files_of_its_driver() {
        let [sysfs, proc] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        for (number, address) in [(0, "0000:00:06.0"), (1, "0000:0b:00.0")] {
            let gpu = proc.path().join("driver/nvidia/gpus").join(address);
            let pci = sysfs.path().join("bus/pci/devices").join(address);
            fs::create_dir_all(&gpu).unwrap();
            fs::create_dir_all(&pci).unwrap();
            let text = format!("Model: \t\t NVIDIA H100\nBus Location: \t {address}\nDevice Minor: \t {number}\n");
            fs::write(gpu.join("information"), text).unwrap();
            for (file, content) in [("numa_node", format!("{number}\n")), ("vendor", "0x10de\n".into())] {
                fs::write(pci.join(file), content).unwrap();
            }
            fs::write(pci.join("device"), "0x2330\n").unwrap();
        }
        let kernel = KernelFiles { sysfs: sysfs.path(), proc: proc.path() };
        let number =
            |minor| DeviceNode { major: NVIDIA, minor, node_type: Some(NodeType::Character), ..node("/dev/no") };
        let facts = of([&number(255), &number(1)].into_iter(), kernel);
        let expected = Facts {
            pci_bus_id: Some("0000:0b:00.0".into()),
            pci_id: Some("10de:2330".into()),
            numa_node: Some(1),
            ..Facts::default()
        };
        assert_eq!(facts, expected);
        assert_eq!(of([&number(255)].into_iter(), kernel), Facts::default(), "the node of all GPUs");
    }

    #[test]
    fn a_node_must_exist_and_be_a_device_unless_its_number_is_given() {
        for (path, expected) in [
            ("/dev/null", None),
            ("/no/such", Some("/no/such: No such file or directory (os error 2)")),
            ("/proc/version", Some("/proc/version is not a device node")),
        ] {
            assert_eq!(problem(&node(path)).as_deref(), expected);
        }
        let described = |node_type, major| problem(&DeviceNode { node_type, major, ..node("/no/such") }).is_none();
        assert!(described(Some(NodeType::Character), 1) && described(Some(NodeType::Fifo), 0));
        assert!(!described(None, 1) && !described(Some(NodeType::Block), 0));
        assert_eq!(problem(&DeviceNode { host_path: "/dev/zero".into(), ..node("/no/such") }), None);
    }

    #[test]
    fn pci_addresses_have_four_parts() {
        for (name, expected) in [
            ("0000:3b:00.0", true),
            ("10000:e1:00.1", true),
            ("0000:3b:00", false),
            ("pci0000:00", false),
            ("0000.3b.00.0", false),
            ("card0", false),
        ] {
            assert_eq!(is_pci_address(name), expected, "{name}");
        }
    }
}
