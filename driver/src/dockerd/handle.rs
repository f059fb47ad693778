//! The part of a task handle that Nomad's docker driver writes: msgpack, with the container's id and the process that
//! collects its logs.

use rmpv::Value;

/// A handle of Nomad's docker driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Handle {
    /// The container's id, 64 hexadecimal digits.
    pub container: String,
    /// The pid of Nomad's process that collects the container's logs.
    pub logger: Option<i32>,
}

impl Handle {
    /// Reads a handle. `None` if another driver wrote it.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let handle = rmpv::decode::read_value(&mut &*bytes).ok()?;
        let container = field(&handle, "ContainerID")?.as_str()?.to_owned();
        let is_id = container.len() == 64 && container.bytes().all(|byte| byte.is_ascii_hexdigit());
        let pid = field(&handle, "ReattachConfig").and_then(|logger| field(logger, "Pid")).and_then(Value::as_i64);
        let logger = pid.and_then(|pid| i32::try_from(pid).ok()).filter(|pid| *pid > 1);
        is_id.then_some(Self { container, logger })
    }

    /// The first digits of the id, as docker's commands show and accept them.
    pub fn short(&self) -> &str {
        self.container.get(..12).unwrap_or(&self.container)
    }
}

fn field<'a>(map: &'a Value, name: &str) -> Option<&'a Value> {
    map.as_map()?.iter().find(|(key, _)| key.as_str() == Some(name)).map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use rmpv::Value;

    use super::Handle;

    fn encoded(container: &str, logger: Value) -> Vec<u8> {
        let fields = [("ReattachConfig", logger), ("ContainerID", container.into()), ("DriverNetwork", Value::Nil)];
        let map = Value::Map(fields.map(|(name, value)| (name.into(), value)).into());
        let mut bytes = Vec::new();
        rmpv::encode::write_value(&mut bytes, &map).unwrap();
        bytes
    }

    #[test]
    fn only_a_handle_of_dockers_driver_is_one() {
        let id = "0123456789abcdef".repeat(4);
        let logger = Value::Map(vec![("Addr".into(), "/tmp/plugin".into()), ("Pid".into(), 4711.into())]);
        let handle = Handle::parse(&encoded(&id, logger)).unwrap();
        assert_eq!(
            (handle.container.as_str(), handle.short(), handle.logger),
            (id.as_str(), "0123456789ab", Some(4711))
        );
        assert_eq!(Handle::parse(&encoded(&id, Value::Nil)).unwrap().logger, None);
        assert_eq!(Handle::parse(&encoded("../x", Value::Nil)), None);
        for bytes in [&b""[..], br#"{"version":1,"container":"a"}"#, b"\x91\x01", b"\xc1"] {
            assert_eq!(Handle::parse(bytes), None);
        }
    }
}
