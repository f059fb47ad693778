//! Jobs of a cluster, from Nomad's HTTP API, with the options and environment variables of the `nomad` command.

use std::path::PathBuf;

use serde_json::Value as Json;

use super::job::{self, DockerTask};
use crate::{
    cli::{arguments::ClusterArguments, failure::Failure},
    nomad::{Api, ApiError, ApiSettings},
};

/// The address of an agent on the same machine.
const DEFAULT_ADDRESS: &str = "http://127.0.0.1:4646";
/// All namespaces that the token may read.
const EVERY_NAMESPACE: &str = "*";

/// The docker tasks of all jobs that are not stopped. Children of periodic and dispatched jobs have the tasks of their
/// parents.
pub fn tasks(arguments: &ClusterArguments) -> Result<Vec<DockerTask>, Failure> {
    let variable = |name: &str| std::env::var(name).ok();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::of)?;
    let api = Api::new(&settings(arguments, variable)).map_err(Failure::Failed)?;
    let jobs = runtime.block_on(jobs(&api, &namespace(arguments, variable)));
    let jobs = jobs.map_err(|problem| Failure::Failed(format!("{}: {problem}", api.name())))?;
    Ok(jobs.iter().flat_map(job::docker_tasks).collect())
}

/// All jobs that are not stopped and have no parent.
async fn jobs(api: &Api, namespace: &str) -> Result<Vec<Json>, ApiError> {
    let list = api.list_jobs(namespace).await?.json;
    let is_wanted = |job: &&Json| job["Stop"] != true && job["ParentID"].as_str().unwrap_or_default().is_empty();
    let wanted: Vec<Json> = list.as_array().into_iter().flatten().filter(is_wanted).cloned().collect();
    api.read_jobs(&wanted).await
}

/// An option overrides its variable.
fn of(option: &Option<String>, variable: &impl Fn(&str) -> Option<String>, name: &str) -> Option<String> {
    option.clone().or_else(|| variable(name)).filter(|text| !text.is_empty())
}

fn namespace(arguments: &ClusterArguments, variable: impl Fn(&str) -> Option<String>) -> String {
    of(&arguments.namespace, &variable, "NOMAD_NAMESPACE").unwrap_or_else(|| EVERY_NAMESPACE.to_owned())
}

fn settings(arguments: &ClusterArguments, variable: impl Fn(&str) -> Option<String>) -> ApiSettings {
    let text = |option: &Option<String>, name: &str| of(option, &variable, name);
    let path = |option: &Option<PathBuf>, name: &str| {
        let from_variable = || variable(name).filter(|text| !text.is_empty()).map(PathBuf::from);
        option.clone().or_else(from_variable)
    };
    ApiSettings {
        address: text(&arguments.address, "NOMAD_ADDR").unwrap_or_else(|| DEFAULT_ADDRESS.to_owned()),
        region: text(&arguments.region, "NOMAD_REGION"),
        token: text(&arguments.token, "NOMAD_TOKEN"),
        http_auth: text(&None, "NOMAD_HTTP_AUTH"),
        ca_cert: path(&arguments.ca_cert, "NOMAD_CACERT"),
        ca_path: path(&arguments.ca_path, "NOMAD_CAPATH"),
        client_cert: path(&arguments.client_cert, "NOMAD_CLIENT_CERT"),
        client_key: path(&arguments.client_key, "NOMAD_CLIENT_KEY"),
        server_name: text(&arguments.tls_server_name, "NOMAD_TLS_SERVER_NAME"),
        skip_verify: arguments.tls_skip_verify
            || matches!(variable("NOMAD_SKIP_VERIFY").as_deref(), Some("1" | "t" | "T" | "true" | "TRUE" | "True")),
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{BufRead, BufReader, Write},
        os::unix::net::UnixListener,
        path::PathBuf,
        sync::{Arc, Mutex},
        thread,
    };

    use serde_json::json;

    use super::{jobs, namespace, settings};
    use crate::{
        cli::arguments::ClusterArguments,
        nomad::{Api, ApiSettings},
    };

    /// Answers requests on a unix socket as an agent does, and notes their heads.
    fn agent(listener: UnixListener, heads: Arc<Mutex<Vec<String>>>) {
        let list = json!([
            { "ID": "team/web", "Namespace": "shop" },
            { "ID": "gone", "Namespace": "default" },
            { "ID": "stopped", "Namespace": "default", "Stop": true },
            { "ID": "web/periodic-1", "Namespace": "default", "ParentID": "web" },
        ]);
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
            let head: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
            let (status, body) = match head.first().map_or("", |line| line.split(' ').nth(1).unwrap_or("")) {
                "/v1/jobs?namespace=*&region=eu" => (200, list.to_string()),
                "/v1/job/team%2Fweb?namespace=shop&region=eu" => (200, json!({ "ID": "team/web" }).to_string()),
                "/v1/jobs?namespace=secret" => (403, "Permission denied".to_owned()),
                _ => (404, "job not found".to_owned()),
            };
            heads.lock().unwrap().push(head.join("\n"));
            let length = body.len();
            let answer = format!("HTTP/1.1 {status} x\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}");
            stream.write_all(answer.as_bytes()).unwrap();
        }
    }

    #[test]
    fn the_jobs_of_a_cluster_are_read() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("api.sock");
        let heads = Arc::new(Mutex::new(Vec::new()));
        let (listener, noted) = (UnixListener::bind(&socket).unwrap(), Arc::clone(&heads));
        thread::spawn(move || agent(listener, noted));
        let settings = |region: Option<&str>| ApiSettings {
            address: format!("unix://{}", socket.display()),
            region: region.map(str::to_owned),
            token: Some("s3cret".to_owned()),
            http_auth: Some("user:pass".to_owned()),
            ..ApiSettings::default()
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let read = |namespace, settings: &ApiSettings| {
            runtime.block_on(jobs(&Api::new(settings).unwrap(), namespace)).map_err(|error| error.to_string())
        };
        assert_eq!(read("*", &settings(Some("eu"))).unwrap(), [json!({ "ID": "team/web" })]);
        let error = read("secret", &settings(None)).unwrap_err();
        assert!(error.contains("Permission denied") && error.contains("list-jobs"), "{error}");
        let heads = heads.lock().unwrap();
        assert_eq!(heads.len(), 4, "{heads:?}");
        let authorized = |head: &String| {
            let head = head.to_lowercase();
            head.contains("x-nomad-token: s3cret") && head.contains("authorization: basic dxnlcjpwyxnz")
        };
        assert!(heads.iter().all(authorized), "{heads:?}");
    }

    #[test]
    fn options_override_variables() {
        let variables = |name: &str| match name {
            "NOMAD_ADDR" => Some("https://variable:4646".to_owned()),
            "NOMAD_TOKEN" => Some("from a variable".to_owned()),
            "NOMAD_SKIP_VERIFY" => Some("true".to_owned()),
            "NOMAD_REGION" => Some(String::new()),
            "NOMAD_CACERT" => Some("/ca.pem".to_owned()),
            _ => None,
        };
        let arguments = ClusterArguments { address: Some("unix:///x".to_owned()), ..ClusterArguments::default() };
        let expected = ApiSettings {
            address: "unix:///x".to_owned(),
            token: Some("from a variable".to_owned()),
            ca_cert: Some(PathBuf::from("/ca.pem")),
            skip_verify: true,
            ..ApiSettings::default()
        };
        assert_eq!((settings(&arguments, variables), namespace(&arguments, variables)), (expected, "*".to_owned()));
        let plain = settings(&ClusterArguments::default(), |_| None);
        assert_eq!((plain.address.as_str(), plain.skip_verify), ("http://127.0.0.1:4646", false));
    }
}
