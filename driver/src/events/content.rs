//! What task events tell: one table with their texts, their annotations, and when each is sent.
//!
//! `docs/task-events.md` lists the table. A text that is not in it cannot be sent.

use std::{collections::BTreeMap, fmt};

/// An event as `docs/task-events.md` lists it.
#[cfg(test)]
pub struct EventSpec {
    /// The text, with the names of its values between braces.
    pub text: &'static str,
    /// When the event is sent, and what its text says.
    pub when: &'static str,
    /// The names of the annotations.
    pub annotations: &'static [&'static str],
}

/// Makes [`Content`] from the table. The comment of an entry says when the event is sent. After its name, the braces
/// have the values of the text, the brackets have the annotations, and then comes the text. It may also contain
/// annotations.
macro_rules! events {
    ($(
        $(#[doc = $when:literal])+
        $name:ident { $($value:ident),* } [$($annotation:ident),*] = $text:literal;
    )+) => {
        /// The content of an event: its kind and its values. An annotation with an empty value is left out.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum Content {
            $($(#[doc = $when])+ $name { $($value: String,)* $($annotation: String,)* },)+
        }

        impl Content {
            /// The text that users see, and the annotations.
            pub fn into_parts(self) -> (String, BTreeMap<String, String>) {
                match self {
                    $(Self::$name { $($value,)* $($annotation,)* } => {
                        (format!($text), named([$((stringify!($annotation), $annotation)),*]))
                    })+
                }
            }
        }

        /// All events.
        #[cfg(test)]
        pub const EVENTS: &[EventSpec] = &[
            $(EventSpec {
                text: $text,
                when: concat!($($when),+),
                annotations: &[$(stringify!($annotation)),*],
            },)+
        ];
    };
}

fn named(annotations: impl IntoIterator<Item = (&'static str, String)>) -> BTreeMap<String, String> {
    let with_value = annotations.into_iter().filter(|(_, value)| !value.is_empty());
    with_value.map(|(name, value)| (name.to_owned(), value)).collect()
}

/// The text.
impl fmt::Display for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.clone().into_parts().0)
    }
}

events! {
    /// No layer must be fetched.
    ImagePresent { image } [digest] = "Image{image} is on this node: {digest}";

    /// After 2 s, then at doubling intervals: what the pull waits for.
    ImageWaits { image, reason, seconds } [] = "Image{image}: waiting for {reason} ({seconds} s so far)";

    /// See [lazy-images.md](lazy-images.md#trust).
    NativeRefused { image, problem } [] =
        "Image{image}: the native image is refused, its original is used: {problem}";

    /// At [a lazy start](lazy-images.md).
    LazyStart { image, mebibytes } [layers, bytes] =
        "Image{image}: the task starts before all of it is here: {layers} layers, {mebibytes} MiB arrive meanwhile";

    /// No source delivers; reads of missing data wait.
    LayerStalled { missing, problem } [layer] =
        "The rest of a layer does not arrive ({missing} parts are missing); reads of it wait: {problem}";

    /// The data of a file did not arrive in time, or was wrong.
    LayerReadFailed { problem } [layer] =
        "A file of the image could not be read (EIO), because its data did not arrive: {problem}";

    /// A source sent bytes that are not those of the layer.
    LayerBytesWrong { source } [layer] =
        "{source} delivered wrong bytes of a layer. They were not used; other sources are asked";

    /// The layer's digest is wrong although its hash tree is right.
    LayerRefused { problem } [layer] =
        "A layer of the image is not the one that its manifest promises; no other task gets it: {problem}";

    /// With `fs_verity`: the kernel found the change when it read the layer. See [images.md](images.md#damage-on-disk).
    LayerDamaged { offset } [layer] =
        "A layer of the image changed on disk (at byte {offset}); reads of the changed part fail (EIO). No other task \
         gets it. Restart the task to fetch it again";

    /// Layers must be fetched.
    Downloading { image } [digest, layers, bytes] = "Downloading image{image}";

    /// After 10 s, then at doubling intervals.
    Download { image, done, total, layers_done, layers, rate } [bytes_done, bytes_total] =
        "Image{image} download: {done} of {total} MiB, {layers_done} of {layers} layers, {rate} MiB/s";

    /// The image is complete.
    Downloaded { image, mebibytes, seconds } [digest] = "Downloaded image{image}: {mebibytes} MiB in {seconds} s";

    /// The image comes from an archive.
    Loading { path } [] = "Loading image from {path}";

    /// Overlayfs does not work in `data_dir`, or the operator asks for copies.
    Copying { reason } [] = "Copying the image, which makes the start slow: {reason}";

    /// The same, for an image that the task [mounts](volumes.md#images-as-volumes).
    CopyingMounted { image, target, reason } [] =
        "Copying the image {image} for the mount at {target}, which makes the start slow: {reason}";

    /// Before a [volume with options](configuration.md#mounts) is mounted.
    MountingVolume { options } [] = "Mounting a volume: {options}";

    /// The task gets no user namespace of its own. The text has the [reason](configuration.md#user-namespaces).
    NodeUserNamespace { reason } [] = "The task runs in the node's user namespace: {reason}";

    /// The task has a memory limit, and the kernel does not count swap.
    SwapUncounted {} [] =
        "This node's kernel does not count swap (it needs swapaccount=1): memory of the task that is swapped out does \
         not count against the memory limit";

    /// A volume of the job asks for a label, and the task has no SELinux label of its own.
    SelinuxUnchanged { paths } [] =
        "SELinux labels of volumes are not changed, because the task has no label of its own: {paths}";

    /// The image of a task is copied, so its writable layer has no limit.
    LayerUnlimited { reason } [] =
        "The plugin's `writable_layer` does not limit this task, because its image is copied: {reason}";

    /// The group's network cannot become as docker's.
    GroupNetworkIncomplete { problem } [] =
        "The group's network has no loopback device, or only root may ping and listen on ports below 1024: {problem}";

    /// The task has no name server that it can reach.
    NamesUnresolved { servers } [] =
        "Names will not be resolved: the node's name servers ({servers}) listen on its loopback, which the task's \
         network cannot reach. Set `dns` in the group's network block, or `dns_servers`";

    /// At a [switch](migrating-from-docker.md#live-switch), after 2 s: dockerd does not answer.
    DockerdWaits { socket } [] =
        "Waiting for dockerd at {socket}: it may still run the task's container of Nomad's docker driver";

    /// At a [switch](migrating-from-docker.md#live-switch).
    DockerContainerRemoved {} [] = "Removed the task's container of Nomad's docker driver";

    /// With `migrate_volumes`, after 2 s: other containers use the volume.
    DockerVolumeWaits { volume } [] = "Waiting for the containers that use docker's volume {volume}";

    /// With `migrate_volumes`, after 2 s: the volume has much data.
    DockerVolumeCopying { volume } [] = "Copying docker's volume {volume}";

    /// With `migrate_volumes`, at the first use of the volume.
    DockerVolumeCopied { volume } [] = "Copied docker's volume {volume}";

    /// The command runs.
    Started { short_digest } [image, digest, pull_ms, plan_ms, start_ms, network_ms] =
        "Started container from {image} ({short_digest})";

    /// See below.
    LogUnread { output } [] =
        "The task's log has no reader: {output} is dropped until Nomad's log collector is back";

    /// A log collector is back, or the task has ended.
    OutputLost { output } [stream, lost_bytes] =
        "{lost_bytes} bytes of {output} were lost because the task's log had no reader";

    /// At the task's end, with a log driver.
    OutputUndelivered { reason } [undelivered_lines] =
        "{undelivered_lines} lines of output were not delivered to the log server ({reason})";

    /// At the task's end: the log relay was killed.
    RelayKilled {} [undelivered_lines] =
        "The process that delivers output to the log server was killed; lines that it held are lost";

    /// At the task's end: lines were not delivered, and the log relay was killed.
    OutputUndeliveredRelayKilled { reason } [undelivered_lines] =
        "{undelivered_lines} lines of output were not delivered to the log server ({reason}). The process that \
         delivers output to the log server was killed; lines that it held are lost";

    /// Plugin and monitor were killed at once.
    TerminalHungUp {} [] =
        "The task's terminal was hung up, because the driver's plugin and the task's monitor were both killed: what it \
         writes there fails. Restart the task";

    /// The monitor was killed just before the task ended, or with the plugin.
    OutputUnread {} [] = "The task's monitor process had been killed: output that Nomad had not read is lost";

    /// The first time, while the task runs.
    OutOfMemory {} [] = "Out of memory: the kernel is killing processes of the task";

    /// At the task's end.
    OutOfMemoryTotal { killed, details } [] = "Out of memory: the kernel killed {killed} of the task{details}";

    /// When the task's statistics are read; see [volumes.md](volumes.md).
    LayerFull { mebibytes } [limit_bytes] =
        "The task's writable layer is full: it has reached its limit of {mebibytes} MiB (`size` in `storage_opt`, or \
         the plugin's `writable_layer`), and the task can write no more files there";

    /// `pids_limit` refused a process or thread for the first time.
    ProcessesRefused { limit } [] =
        "The task has reached its limit{limit} on processes and threads (option pids_limit): it cannot make more";

    /// At the task's end: the number of refusals.
    ProcessesRefusedTotal { count } [] =
        "The task's limit on processes and threads (option pids_limit) refused it {count} of them";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_may_be_in_the_text_and_in_an_annotation() {
        let [output, stream, lost_bytes] = ["standard output", "stdout", "7"].map(str::to_owned);
        let (text, annotations) = Content::OutputLost { output, stream, lost_bytes }.into_parts();
        assert_eq!(text, "7 bytes of standard output were lost because the task's log had no reader");
        let expected = [("lost_bytes", "7"), ("stream", "stdout")];
        assert!(annotations.iter().map(|(name, value)| (name.as_str(), value.as_str())).eq(expected));
    }

    #[test]
    fn an_annotation_without_a_value_is_left_out() {
        let image = String::new();
        let [digest, layers, bytes] = ["sha256:1", "", "0"].map(str::to_owned);
        let (text, annotations) = Content::Downloading { image, digest, layers, bytes }.into_parts();
        assert_eq!(text, "Downloading image");
        assert_eq!(annotations.keys().collect::<Vec<_>>(), ["bytes", "digest"]);
    }
}
