//! Who we are to a registry when the task does not say: docker's `config.json`, then a credential helper.
//!
//! Both are asked anew whenever a registry has to be asked, so that what changes on disk counts with the next pull. Neither the
//! file's content nor a helper's output ever reaches an error or a log.

pub(crate) mod docker;
mod helper;

use std::{io::Read, path::Path};

use crate::{
    config::{CredentialSources, Credentials, PullRequest},
    error::PullError,
    reference::Reference,
};

/// A `config.json` is a few kilobytes.
const FILE_BYTES: u64 = 4 << 20;

/// A source that should have answered and did not.
#[derive(Debug, PartialEq, Eq)]
struct Failure {
    /// "the docker config /path" or "docker-credential-x".
    origin: String,
    problem: String,
}

/// Completes a request that brings no credentials of its own. When nothing knows any, it stays without: the registry's configured
/// ones are used, or none.
pub(crate) async fn settle(sources: &CredentialSources, request: &mut PullRequest) -> Result<(), PullError> {
    if request.credentials.is_some() || (sources.config_file.is_none() && sources.helper.is_none()) {
        return Ok(());
    }
    let (sources, reference, soft_fail) = (sources.clone(), request.reference.clone(), request.soft_fail);
    // Files and processes are waited for off the async threads.
    let found = tokio::task::spawn_blocking(move || find(&sources, &reference, soft_fail)).await;
    let found = found.unwrap_or_else(|_| {
        Err(Failure { origin: "the plugin's auth block".into(), problem: "the search was interrupted".into() })
    });
    request.credentials = found.map_err(|Failure { origin, problem }| PullError::Credentials { origin, problem })?;
    Ok(())
}

/// Asks the sources in turn. Under `soft_fail` a source that fails knows nothing.
fn find(sources: &CredentialSources, reference: &Reference, soft_fail: bool) -> Result<Option<Credentials>, Failure> {
    let forgive = |result: Result<Option<Credentials>, Failure>| match result {
        Err(Failure { origin, problem }) if soft_fail => {
            tracing::warn!(image = %reference, origin, problem, "going on without these credentials (auth_soft_fail)");
            Ok(None)
        }
        result => result,
    };
    if let Some(path) = &sources.config_file
        && let Some(credentials) = forgive(from_file(path, reference))?
    {
        return Ok(Some(credentials));
    }
    match &sources.helper {
        Some(name) => forgive(helper::ask(name, docker::server(reference.domain()))),
        None => Ok(None),
    }
}

fn from_file(path: &Path, reference: &Reference) -> Result<Option<Credentials>, Failure> {
    let wrong = |problem: String| Failure { origin: format!("the docker config {}", path.display()), problem };
    let mut text = Vec::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(FILE_BYTES + 1).read_to_end(&mut text))
        .map_err(|error| wrong(error.to_string()))?;
    if text.len() as u64 > FILE_BYTES {
        return Err(wrong(format!("it is larger than {FILE_BYTES} bytes")));
    }
    let config = docker::Config::parse(&text).map_err(wrong)?;
    let server = docker::server(reference.domain());
    if let Some(name) = config.helper(reference)
        && let Some(credentials) = helper::ask(name, server)?
    {
        return Ok(Some(credentials));
    }
    if let Some(credentials) = config.stored(reference).map_err(wrong)? {
        return Ok(Some(credentials));
    }
    match config.store() {
        Some(name) => helper::ask(name, server),
        None => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> PullRequest {
        PullRequest::new("registry.invalid/team/app:1".parse().unwrap())
    }

    async fn user(sources: &CredentialSources, soft_fail: bool) -> Result<Option<String>, PullError> {
        let mut request = PullRequest { soft_fail, ..request() };
        settle(sources, &mut request).await?;
        Ok(request.credentials.map(|credentials| credentials.username))
    }

    #[tokio::test]
    async fn the_file_is_read_anew_and_failures_are_told() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("config.json");
        let sources = CredentialSources { config_file: Some(path.clone()), helper: None };
        let error = user(&sources, false).await.unwrap_err();
        assert!(error.to_string().contains(path.to_str().unwrap()) && !error.recoverable(), "{error}");
        assert_eq!(user(&sources, true).await.unwrap(), None);
        for name in ["ann", "bob"] {
            let auths = serde_json::json!({"auths": {"registry.invalid": {"username": name, "password": "x"}}});
            std::fs::write(&path, auths.to_string()).unwrap();
            assert_eq!(user(&sources, false).await.unwrap().as_deref(), Some(name));
        }
        std::fs::write(&path, "{\"auths\": \"hunter2\"").unwrap();
        let error = user(&sources, false).await.unwrap_err().to_string();
        assert!(!error.contains("hunter2"), "{error}");
        // The task's own word needs no file.
        let own = Credentials { username: "own".into(), password: "x".into() };
        let mut request = PullRequest { credentials: Some(own.clone()), ..request() };
        settle(&sources, &mut request).await.unwrap();
        assert_eq!(request.credentials, Some(own));
    }

    #[tokio::test]
    async fn a_file_that_knows_nothing_leaves_the_helper_to_be_asked() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("config.json");
        std::fs::write(&path, "{}").unwrap();
        let no_helper = "oci-rs-test-of-no-such-helper";
        let sources = CredentialSources { config_file: Some(path), helper: Some(no_helper.into()) };
        let error = user(&sources, false).await.unwrap_err().to_string();
        assert!(error.contains(&format!("docker-credential-{no_helper}")), "{error}");
        assert_eq!(user(&sources, true).await.unwrap(), None);
    }

    #[tokio::test]
    async fn helpers_of_the_file_come_before_its_passwords() {
        let directory = tempfile::tempdir().unwrap();
        let program = helper::tests::script(directory.path(), r#"echo '{"Username":"helped","Secret":"s"}'"#);
        let server = docker::server("registry.invalid");
        let credentials = helper::run(&program, server, std::time::Duration::from_secs(10)).unwrap();
        assert_eq!(credentials.unwrap().username, "helped");
        let config = docker::Config::parse(
            br#"{"credHelpers": {"registry.invalid": "script"}, "auths": {"registry.invalid": {"auth": "YTpi"}}}"#,
        )
        .unwrap();
        assert_eq!(config.helper(&request().reference), Some("script"));
    }
}
