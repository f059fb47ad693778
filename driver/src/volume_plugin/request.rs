//! What Nomad asks for, from its variables (Nomad's documentation, "Create a host volume plugin").

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{
    error::PluginError,
    parameters::Parameters,
    place::{Place, is_id},
};

/// The variable of the operation, which is the first argument too.
pub const OPERATION: &str = "DHV_OPERATION";

/// An operation.
#[derive(Debug, PartialEq, Eq)]
pub enum Operation {
    /// Tell the version.
    Fingerprint,
    /// Make a volume, or make sure that it can be used.
    Create(Box<Request>),
    /// Remove a volume.
    Delete(Place),
}

/// The request of a volume.
#[derive(Debug, PartialEq, Eq)]
pub struct Request {
    /// Where it is.
    pub place: Place,
    /// Its name.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// Its size.
    pub capacity: Capacity,
    /// Its parameters.
    pub parameters: Parameters,
    /// The directory of Nomad's plugins of this kind.
    pub plugins: Option<PathBuf>,
}

/// The size of a volume as its specification gives it, in bytes. A zero is not given. Nomad refuses a maximum below the
/// minimum, also one that is not given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capacity {
    /// `capacity_min`.
    pub min: u64,
    /// `capacity_max`.
    pub max: u64,
}

impl Operation {
    /// The operation of a first argument and the variables.
    pub fn parse(argument: Option<String>, variable: impl Fn(&str) -> Option<String>) -> Result<Self, PluginError> {
        let operation = argument.or_else(|| variable(OPERATION)).unwrap_or_default();
        Self::read(&operation, variable).map_err(PluginError::new)
    }

    fn read(operation: &str, variable: impl Fn(&str) -> Option<String>) -> Result<Self, String> {
        match operation {
            "fingerprint" => Ok(Self::Fingerprint),
            "create" => Ok(Self::Create(Box::new(Request::parse(variable)?))),
            "delete" => Ok(Self::Delete(place(&variable)?)),
            other => Err(format!("{other:?} is no operation: Nomad calls fingerprint, create and delete")),
        }
    }
}

impl Request {
    fn parse(variable: impl Fn(&str) -> Option<String>) -> Result<Self, String> {
        let bytes = |name: &str| match variable(name) {
            None => Ok(0),
            Some(text) => text.parse().map_err(|_| format!("{name} is no number of bytes: {text:?}")),
        };
        let capacity = Capacity { min: bytes("DHV_CAPACITY_MIN_BYTES")?, max: bytes("DHV_CAPACITY_MAX_BYTES")? };
        let parameters = variable("DHV_PARAMETERS").unwrap_or_else(|| "null".to_owned());
        let text = |name: &str| variable(name).unwrap_or_default();
        Ok(Self {
            place: place(&variable)?,
            name: text("DHV_VOLUME_NAME"),
            namespace: text("DHV_NAMESPACE"),
            capacity,
            parameters: Parameters::parse(&parameters, capacity.is_limit())?,
            plugins: variable("DHV_PLUGIN_DIR").map(PathBuf::from),
        })
    }
}

/// The volume's place. `DHV_CREATED_PATH` is not used: after a failure to save a volume, Nomad sends the directory of
/// all volumes.
fn place(variable: impl Fn(&str) -> Option<String>) -> Result<Place, String> {
    let given =
        |name: &str| variable(name).filter(|value| !value.is_empty()).ok_or_else(|| format!("{name} is missing"));
    let directory = PathBuf::from(given("DHV_VOLUMES_DIR")?);
    let id = given("DHV_VOLUME_ID")?;
    if !directory.is_absolute() {
        return Err(format!("DHV_VOLUMES_DIR is no absolute path: {}", directory.display()));
    }
    if !is_id(&id) {
        return Err(format!("DHV_VOLUME_ID is no id of a volume: {id:?}"));
    }
    Ok(Place::new(directory, id))
}

impl Capacity {
    /// Whether the volume has a limit.
    pub fn is_limit(self) -> bool {
        self.min > 0 || self.max > 0
    }

    /// The size of the first file system to try.
    pub fn first_size(self) -> u64 {
        if self.min == 0 { self.whole_blocks(self.max) } else { self.at_most(self.min + self.min / 16) }
    }

    /// The size of the next file system to try, if one of `bytes` bytes has room for `room` bytes and that is too
    /// little; `None` if it is enough, or as much as the maximum allows. A file system without any room does not tell
    /// what it needs for itself, so its size doubles.
    pub fn next_size(self, bytes: u64, room: u64) -> Option<u64> {
        const LEAST: u64 = 1 << 20;
        let step = if room == 0 { bytes.max(LEAST) } else { LEAST };
        let missing = self.min.saturating_sub(room);
        let next = self.at_most(bytes.saturating_add(missing + missing / 16).saturating_add(step));
        (missing > 0 && next > bytes).then_some(next)
    }

    /// The size for this capacity of a volume that was made for another one, if the volume is too small. `has` is the
    /// size of its file system or its limit, and `room` is what `df` shows. A call that was killed may have changed the
    /// first one already.
    pub fn growth(self, made_for: Self, has: u64, room: u64) -> Option<u64> {
        let wanted = self.first_size();
        let is_too_small = if self.min == 0 { wanted >= has } else { self.min > room };
        (self.is_limit() && self != made_for && is_too_small).then_some(wanted.max(has))
    }

    fn at_most(self, bytes: u64) -> u64 {
        self.whole_blocks(if self.max == 0 { bytes } else { bytes.min(self.max) })
    }

    fn whole_blocks(self, bytes: u64) -> u64 {
        const BLOCK: u64 = 4096;
        bytes / BLOCK * BLOCK
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ID: &str = "9a0e2f1c-6f5b-4d0e-8a3b-0c1d2e3f4a5b";

    fn parse(operation: &str, changed: &[(&str, &str)]) -> Result<Operation, String> {
        let given = [
            ("DHV_VOLUMES_DIR", "/volumes"),
            ("DHV_VOLUME_ID", ID),
            ("DHV_VOLUME_NAME", "db"),
            ("DHV_NAMESPACE", "default"),
            ("DHV_CREATED_PATH", "/volumes"),
            ("DHV_CAPACITY_MIN_BYTES", "0"),
            ("DHV_CAPACITY_MAX_BYTES", "50000000"),
            ("DHV_PARAMETERS", "null"),
        ];
        let variable = |name: &str| {
            let value = changed.iter().chain(&given).find(|(known, _)| *known == name).map(|(_, value)| *value);
            value.map(str::to_owned)
        };
        Operation::parse(Some(operation.to_owned()), variable).map_err(|error| error.to_string())
    }

    #[test]
    fn the_variables_are_a_request() {
        let place = || Place::new("/volumes".into(), ID.to_owned());
        let request = Request {
            place: place(),
            name: "db".to_owned(),
            namespace: "default".to_owned(),
            capacity: Capacity { min: 0, max: 50_000_000 },
            parameters: Parameters::default(),
            plugins: None,
        };
        assert_eq!(parse("create", &[]), Ok(Operation::Create(Box::new(request))));
        assert_eq!(parse("delete", &[]), Ok(Operation::Delete(place())));
        assert_eq!(parse("fingerprint", &[]), Ok(Operation::Fingerprint));
        let by_variable = Operation::parse(None, |name| (name == OPERATION).then(|| "fingerprint".to_owned()));
        assert_eq!(by_variable.unwrap(), Operation::Fingerprint);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (operation, name, value) in [
            ("create", "DHV_VOLUME_ID", ""),
            ("delete", "DHV_VOLUME_ID", "../../etc"),
            ("delete", "DHV_VOLUME_ID", "."),
            ("create", "DHV_VOLUME_ID", "9a0e2f1c/6f5b/4d0e/8a3b/0c1d2e3f4a5b"),
            ("create", "DHV_VOLUMES_DIR", "volumes"),
            ("delete", "DHV_VOLUMES_DIR", ""),
            ("create", "DHV_CAPACITY_MAX_BYTES", "-1"),
            ("create", "DHV_PARAMETERS", "[]"),
        ] {
            let error = parse(operation, &[(name, value)]).unwrap_err();
            assert!(error.contains(name), "{name}={value}: {error}");
        }
        assert!(parse("resize", &[]).unwrap_err().contains("\"resize\" is no operation"));
    }

    #[test]
    fn a_volume_grows_to_the_size_of_a_new_one() {
        const MIB: u64 = 1 << 20;
        let of = |min: u64, max: u64| Capacity { min: min * MIB, max: max * MIB };
        for (wanted, made_for, has, room, expected) in [
            (of(0, 16), of(0, 16), 16, 14, None),
            (of(0, 64), of(0, 16), 16, 14, Some(64)),
            // A killed call has made the file larger, and not its file system.
            (of(0, 64), of(0, 16), 64, 14, Some(64)),
            (of(0, 15), of(0, 16), 16, 14, None),
            (of(14, 64), of(0, 16), 16, 14, None),
            (of(32, 64), of(0, 16), 16, 14, Some(34)),
            (of(32, 32), of(0, 16), 16, 14, Some(32)),
            (of(32, 64), of(0, 16), 40, 14, Some(40)),
            (of(0, 0), of(0, 16), 16, 14, None),
        ] {
            let found = wanted.growth(made_for, has * MIB, room * MIB);
            assert_eq!(found, expected.map(|mebibytes| mebibytes * MIB), "{wanted:?} {made_for:?} {has} {room}");
        }
    }

    proptest! {
        /// A volume never becomes smaller, and a repeated call changes nothing.
        #[test]
        fn growth_is_repeatable(min in 0u64..1 << 40, more in 0u64..1 << 40, blocks in 0u64..1 << 29, old in 1u64..9) {
            let (wanted, made_for) = (Capacity { min, max: min + more }, Capacity { min: 0, max: old });
            let has = blocks * 4096;
            if let Some(size) = wanted.growth(made_for, has, has) {
                prop_assert!(size >= has && (size <= wanted.max || size == has));
                prop_assert_eq!(wanted.growth(wanted, size, size), None);
            }
        }

        /// The search for a size ends, never above the maximum, and with enough room if the maximum has it.
        #[test]
        fn a_size_is_found(min in 1u64..1 << 44, more in 0u64..1 << 44, overhead in 1u64..1 << 34) {
            let capacity = Capacity { min, max: min + more };
            let room = |bytes: u64| (bytes - bytes / 50).saturating_sub(overhead);
            let (mut bytes, mut steps) = (capacity.first_size(), 0);
            while let Some(next) = capacity.next_size(bytes, room(bytes)) {
                prop_assert!(next > bytes);
                (bytes, steps) = (next, steps + 1);
            }
            prop_assert!(bytes <= capacity.max && steps <= 20, "{steps} steps");
            prop_assert!(room(bytes) >= min || capacity.max - bytes < 4096);
        }
    }
}
