//! Named volumes of the docker daemon: their directories, and the containers that use them.

use std::{path::PathBuf, time::Duration};

use serde_json::Value;

use super::{Dockerd, LIMIT, id_of, is_plain};
use crate::error::TaskError;

/// How long a container that uses a volume may take to end, beside the time of its own stop.
const PATIENCE: Duration = Duration::from_secs(30);

impl Dockerd {
    /// The directory of docker's volume of this name; `None` if there is none. Waits for the end of the containers that
    /// use it. Without a daemon it is an error, because there may be a volume. A volume on which docker mounts a file
    /// system, or which a volume plugin of docker has, is an error too: the task would start with an empty directory.
    pub async fn volume(&self, name: &str) -> Result<Option<PathBuf>, TaskError> {
        if !is_plain(name) {
            return Ok(None);
        }
        let answer = self.ask(name, &format!("/volumes/{name}"), &[200, 404]).await?;
        if is_mounted(&answer) {
            return Err(TaskError::Internal(format!(
                "docker's volume {name} is a file system with options (see `docker volume inspect {name}`), which is \
                 not copied: give the job these options in `mount {{ volume_options {{ driver_config {{ options }} }} \
                 }}`, or unset `migrate_volumes` in the plugin block to start with an empty volume"
            )));
        }
        if let Some(driver) = foreign_driver(&answer) {
            return Err(TaskError::Internal(format!(
                "docker's volume {name} belongs to docker's volume plugin {driver:?}, whose data is not copied: use a \
                 `volume` block in the group (host volume or CSI) and `volume_mount` in the task, or unset \
                 `migrate_volumes` in the plugin block to start with an empty volume"
            )));
        }
        let Some(directory) = directory_of(&answer) else { return Ok(None) };
        for container in self.users(name).await? {
            let path = format!("/containers/{container}/wait?condition=not-running");
            // The look at the volume's users below tells whether it has ended.
            drop(self.api.call("POST", &path, self.stop_timeout + PATIENCE).await);
        }
        self.expect_unused(name).await?;
        Ok(Some(directory))
    }

    /// Fails if a container uses docker's volume of this name.
    pub async fn expect_unused(&self, name: &str) -> Result<(), TaskError> {
        let users = self.users(name).await?;
        let Some(container) = users.first() else { return Ok(()) };
        Err(TaskError::Internal(format!(
            "docker's volume {name} cannot be taken over while docker's container {} uses it: stop that container, or \
             unset `migrate_volumes` in the plugin block",
            container.get(..12).unwrap_or(container)
        )))
    }

    /// The ids of the running containers that use a volume.
    async fn users(&self, name: &str) -> Result<Vec<String>, TaskError> {
        // {"volume":["name"]}
        let filters = format!("%7B%22volume%22%3A%5B%22{name}%22%5D%7D");
        let list = self.ask(name, &format!("/containers/json?filters={filters}"), &[200]).await?;
        Ok(list.as_array().into_iter().flatten().filter_map(id_of).map(str::to_owned).collect())
    }

    async fn ask(&self, volume: &str, path: &str, statuses: &[u16]) -> Result<Value, TaskError> {
        let answer = self.api.call("GET", path, LIMIT).await.map_err(|error| error.to_string());
        let problem = match answer {
            Ok(answer) if statuses.contains(&answer.status) => return Ok(answer.body),
            Ok(answer) => answer.message(),
            Err(error) => error,
        };
        Err(TaskError::Internal(format!(
            "dockerd at {} does not say whether it has data of the volume {volume} ({problem}): start dockerd, or \
             unset `migrate_volumes` in the plugin block if all volumes are taken over",
            self.api.socket().display()
        )))
    }
}

/// Whether docker mounts a file system, which has the data, on the volume's directory. Other options, such as `size`,
/// do not change where the data is.
fn is_mounted(volume: &Value) -> bool {
    let is_set = |option: &str| volume["Options"][option].as_str().is_some_and(|value| !value.is_empty());
    volume["Driver"] == "local" && (is_set("type") || is_set("device"))
}

/// The volume plugin of docker that has a described volume.
fn foreign_driver(volume: &Value) -> Option<&str> {
    volume["Driver"].as_str().filter(|driver| *driver != "local")
}

/// The directory of a described volume.
fn directory_of(volume: &Value) -> Option<PathBuf> {
    let directory = PathBuf::from(volume["Mountpoint"].as_str()?);
    (volume["Driver"] == "local" && !is_mounted(volume) && directory.is_absolute()).then_some(directory)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::{Value, json};

    use super::{directory_of, foreign_driver, is_mounted};

    #[test]
    fn only_a_local_volume_without_a_file_system_has_a_directory_with_data() {
        let volume = json!({"Name": "db", "Driver": "local", "Mountpoint": "/d/volumes/db/_data", "Options": null});
        assert_eq!(directory_of(&volume).as_deref(), Some(Path::new("/d/volumes/db/_data")));
        let with = |name: &str, value: Value| {
            let mut volume = volume.clone();
            volume[name] = value;
            directory_of(&volume)
        };
        assert!(with("Options", json!({})).is_some());
        assert!(with("Options", json!({"size": "1G"})).is_some());
        assert_eq!(with("Options", json!({"type": "nfs"})), None);
        assert_eq!(with("Driver", json!("rexray")), None);
        assert_eq!(with("Mountpoint", json!("data")), None);
        assert_eq!(directory_of(&json!({"message": "no such volume"})), None);

        for (options, expected) in [
            (json!(null), false),
            (json!({}), false),
            (json!({"size": "1G"}), false),
            (json!({"type": "nfs", "device": ":/x", "o": "addr=nas"}), true),
            (json!({"type": "none", "device": "/srv/data", "o": "bind"}), true),
        ] {
            assert_eq!(is_mounted(&json!({"Driver": "local", "Options": options})), expected, "{options}");
        }
        assert!(!is_mounted(&json!({"message": "no such volume"})));
        for (described, expected) in [
            (json!({"Driver": "rexray"}), Some("rexray")),
            (json!({"Driver": "local"}), None),
            (json!({"message": "no such volume"}), None),
        ] {
            assert_eq!(foreign_driver(&described), expected, "{described}");
        }
    }
}
