//! Credentials: the hosts that get them, and the hosts that must not.

use std::sync::Arc;

use fixtures::registry::{Action, Auth, DockerRegistry, Fault, Registry};
use image_store::{Image, PullError, PullRequest, RegistryConfig, Silent};

use crate::common::{Bench, config, credentials, request, small};

async fn pull_as(bench: &Bench, reference: &str, user: &str, password: &str) -> Result<Image, PullError> {
    let request = PullRequest { credentials: credentials(user, password), ..request(reference) };
    bench.store.acquire(request, "task", Arc::new(Silent)).await
}

fn bearer(user: Option<(&str, &str)>, realm: Option<String>) -> Auth {
    Auth::Bearer { user: user.map(|(user, password)| (user.into(), password.into())), realm }
}

#[tokio::test(flavor = "multi_thread")]
async fn basic() {
    let bench = Bench::new();
    let reference = bench.push("app:1", &small("basic"));
    bench.registry.auth(Auth::Basic { user: "joe".into(), password: "pass:word".into() });
    let error = bench.pull(&reference).await.unwrap_err();
    assert!(matches!(error, PullError::Denied { anonymous: true, .. }) && !error.recoverable(), "{error}");
    let error = pull_as(&bench, &reference, "joe", "wrong-secret").await.unwrap_err();
    assert!(matches!(error, PullError::Denied { anonymous: false, .. }) && !error.recoverable(), "{error}");
    assert!(!error.to_string().contains("wrong-secret"));
    pull_as(&bench, &reference, "joe", "pass:word").await.unwrap();
    assert_eq!(bench.store.leases().unwrap(), ["task"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn anonymous_tokens_are_fetched_once() {
    let bench = Bench::new();
    let reference = bench.push("app:1", &small("anonymous"));
    bench.registry.auth(bearer(None, None));
    bench.pull(&reference).await.unwrap();
    assert_eq!(bench.registry.count("/token"), 1);
    let token = bench.registry.requests().into_iter().find(|request| request.path.starts_with("/token")).unwrap();
    assert!(
        token.path.contains("scope=repository%3Aapp%3Apull") && token.path.contains("service=kit"),
        "{}",
        token.path
    );
    assert_eq!(token.header("authorization"), None);
    // Once the token is known, every request contains it.
    assert_eq!(bench.registry.requests().iter().filter(|request| request.header("authorization").is_none()).count(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_need_the_right_user_and_are_renewed_when_they_end() {
    let bench = Bench::new();
    let reference = bench.push("app:latest", &small("bearer"));
    bench.registry.auth(bearer(Some(("joe", "secret")), None));
    let error = pull_as(&bench, &reference, "joe", "wrong-secret").await.unwrap_err();
    assert!(matches!(error, PullError::Denied { .. }) && !error.to_string().contains("wrong-secret"), "{error}");
    pull_as(&bench, &reference, "joe", "secret").await.unwrap();
    bench.registry.revoke_tokens();
    pull_as(&bench, &reference, "joe", "secret").await.unwrap();
    // Another job's token is not used for a job that has none.
    bench.pull(&reference).await.unwrap_err();
}

#[tokio::test(flavor = "multi_thread")]
async fn identity_tokens_are_exchanged_by_post() {
    let bench = Bench::new();
    let reference = bench.push("app:1", &small("identity"));
    bench.registry.auth(bearer(Some(("joe", "refresh-me")), None));
    pull_as(&bench, &reference, "<token>", "refresh-me").await.unwrap();
    let exchange = bench.registry.requests().into_iter().find(|request| request.method == "POST").unwrap();
    assert!(exchange.body.contains("grant_type=refresh_token") && exchange.header("authorization").is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_for_the_registry_is_sent_as_it_is() {
    let bench = Bench::new();
    let reference = bench.push("app:1", &small("token"));
    bench.registry.auth(bearer(Some(("joe", "nobody asks")), None));
    // The fixture registry accepts this first.
    pull_as(&bench, &reference, "<registrytoken>", "token-1").await.unwrap();
    assert_eq!(bench.registry.count("/token"), 0);
    let error = pull_as(&Bench::new(), &reference, "<registrytoken>", "hunter2").await.unwrap_err();
    assert!(matches!(error, PullError::Denied { anonymous: false, .. }), "{error}");
    assert_eq!(bench.registry.count("/token"), 0);
    // The token is not accepted as a password either.
    bench.registry.auth(Auth::Basic { user: "<registrytoken>".into(), password: "token-1".into() });
    bench.registry.forget_requests();
    pull_as(&Bench::new(), &reference, "<registrytoken>", "token-1").await.unwrap_err();
    assert!(bench.registry.requests().iter().all(|request| request.header("authorization").is_none()));
}

#[tokio::test(flavor = "multi_thread")]
async fn configured_credentials_stand_in() {
    let registry = Registry::start();
    let reference = registry.push("app:1", &small("configured"));
    registry.auth(bearer(Some(("joe", "secret")), None));
    let config = RegistryConfig {
        host: registry.host(),
        username: Some("joe".into()),
        password: Some("secret".into()),
        ..Default::default()
    };
    Bench::with(vec![config]).pull(&reference).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn redirects_never_carry_credentials_away() {
    let bench = Bench::new();
    let elsewhere = Registry::start();
    let built = small("redirected");
    let reference = bench.push("app:1", &built);
    elsewhere.push("app:1", &built);
    bench.registry.auth(Auth::Basic { user: "joe".into(), password: "secret".into() });
    bench
        .registry
        .fault(Fault::on("/blobs/", Action::Redirect(format!("http://{}{{path}}?signed=1", elsewhere.host()))));
    pull_as(&bench, &reference, "joe", "secret").await.unwrap();
    let requests = elsewhere.requests();
    assert_eq!(requests.len(), 2);
    assert!(requests.iter().all(|request| request.header("authorization").is_none()));
}

#[tokio::test(flavor = "multi_thread")]
async fn redirects_to_internal_addresses_are_refused_and_not_quoted() {
    let bench = Bench::new();
    let reference = bench.push("app:1", &small("misled"));
    // The registry is on a loopback address, so only link-local addresses are refused.
    for target in ["http://169.254.169.254/latest/meta-data", "http://[fe80::1]/x"] {
        bench.registry.fault(Fault::on("/manifests/", Action::Redirect(target.into())));
        let error = bench.pull(&reference).await.unwrap_err();
        let text = error.to_string();
        assert!(text.contains("internal address") && text.contains("internal_redirects"), "{text}");
        assert!(!error.recoverable(), "{text}");
        bench.registry.heal();
    }
    let other = Registry::start();
    other.push("app:1", &small("misled"));
    let secret = br#"{"schemaVersion":"SECRET"}"#.to_vec();
    for action in [Action::Status(403, Vec::new()), Action::Status(404, Vec::new()), Action::Body(secret)] {
        other.fault(Fault::on("/manifests/", action));
        bench.registry.fault(Fault::on("/manifests/", Action::Redirect(format!("http://{}{{path}}", other.host()))));
        let text = bench.pull(&reference).await.unwrap_err().to_string();
        assert!(!text.contains("SECRET") && !text.contains("fault"), "{text}");
        other.heal();
        bench.registry.heal();
    }
    // The message of the registry itself is quoted.
    bench.registry.fault(Fault::on("/manifests/", Action::Status(403, Vec::new())));
    let text = bench.pull(&reference).await.unwrap_err().to_string();
    assert!(text.contains(": fault"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_challenge_of_another_host_gets_no_answer() {
    let bench = Bench::new();
    let thief = Registry::start();
    thief.auth(Auth::Basic { user: "joe".into(), password: "secret".into() });
    let built = small("stolen");
    let reference = bench.push("app:1", &built);
    thief.push("app:1", &built);
    bench.registry.auth(Auth::Basic { user: "joe".into(), password: "secret".into() });
    bench.registry.fault(Fault::on("/blobs/", Action::Redirect(format!("http://{}{{path}}", thief.host()))));
    let error = pull_as(&bench, &reference, "joe", "secret").await.unwrap_err();
    assert!(matches!(error, PullError::Denied { .. }), "{error}");
    assert!(thief.requests().iter().all(|request| request.header("authorization").is_none()));
}

#[tokio::test(flavor = "multi_thread")]
async fn malicious_challenges_get_nothing() {
    let thief = Registry::start();
    let other = thief.host();
    let long = format!("Bearer realm=\"{}", "x,".repeat(10_000));
    for header in [
        "Bearer realm=\"file:///etc/passwd\"",
        "Bearer realm=\"gopher://{}/token\"",
        "Bearer realm=\"http://joe:secret@{}/token\"",
        "Bearer realm=\"http://joe@{}/token\"",
        "Bearer realm=\"data:text/plain,{}\"",
        "Bearer realm=\"http://[\"",
        "Bearer service=\"{}\"",
        "Bearer realm=\"http://{}/never-closed",
        "NTLM, Negotiate {}, =,,\"\\",
        &long,
    ] {
        let bench = Bench::new();
        let reference = bench.push("app:1", &small("asked"));
        let header = header.replace("{}", &other);
        let challenge = vec![("WWW-Authenticate".to_owned(), header.clone())];
        bench.registry.fault(Fault::on("/v2/", Action::Status(401, challenge)));
        let error = pull_as(&bench, &reference, "joe", "hunter2").await.unwrap_err();
        let text = error.to_string();
        assert!(!error.recoverable() && !text.contains("hunter2") && !text.contains("secret"), "{header:.80}: {text}");
        assert!(text.len() < 2000 && !text.contains(char::is_control), "{text:?}");
        let requests = bench.registry.requests();
        assert!(requests.iter().all(|request| request.header("authorization").is_none()), "{header:.80}");
        bench.assert_clean();
    }
    assert_eq!(thief.requests().len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn redirects_end() {
    let bench = Bench::new();
    let reference = bench.push("app:1", &small("round"));
    bench.registry.fault(Fault::on("/", Action::Redirect("{path}".into())));
    let error = bench.pull(&reference).await.unwrap_err();
    assert!(error.to_string().contains("redirects") && !error.recoverable(), "{error}");
    assert_eq!(bench.registry.requests().len(), 6);
}

#[tokio::test(flavor = "multi_thread")]
async fn token_servers_are_bounded_and_honest() {
    let bench = Bench::new();
    let reference = bench.push("app:1", &small("token"));
    bench.registry.auth(bearer(None, None));
    for (action, reason) in [
        (Action::Endless, "limit"),
        (Action::Body(b"<html>".to_vec()), "no token document"),
        (Action::Body(b"{}".to_vec()), "no token"),
    ] {
        bench.registry.heal();
        bench.registry.fault(Fault::on("/token", action));
        let error = bench.pull(&reference).await.unwrap_err();
        assert!(error.to_string().contains(reason) && !error.recoverable(), "{error}");
    }
    bench.registry.heal();
    bench.registry.fault(Fault::on("/token", Action::Status(503, Vec::new())).times(2));
    bench.pull(&reference).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_are_verified_unless_told_otherwise() {
    let Some(registry) = DockerRegistry::start_tls() else {
        // Only if the program is installed.
        return;
    };
    let reference = format!("{}/app:1", registry.host());
    let base = || RegistryConfig { host: registry.host(), ..Default::default() };
    let other = DockerRegistry::start_tls().unwrap();
    for (config, trusted) in [
        (RegistryConfig { ca_file: Some(registry.ca_file()), ..base() }, true),
        (RegistryConfig { ca_file: Some(other.ca_file()), ..base() }, false),
        (RegistryConfig { insecure_skip_verify: true, ..base() }, true),
    ] {
        let error = Bench::with(vec![config]).pull(&reference).await.unwrap_err();
        // A trusted, empty registry answers that it has no such image.
        assert_eq!(matches!(error, PullError::NotFound { .. }), trusted, "{error}");
        assert_eq!(error.to_string().contains("set ca_file in this registry's block"), !trusted, "{error}");
    }
    let missing = RegistryConfig { ca_file: Some("/no/such/file".into()), ..base() };
    let error = Bench::with(vec![missing]).pull(&reference).await.unwrap_err();
    assert!(error.to_string().contains("/no/such/file") && !error.recoverable(), "{error}");
}

/// As with curl and skopeo, a self-signed certificate is accepted if `ca_file` contains it.
#[tokio::test(flavor = "multi_thread")]
async fn a_self_signed_certificate_may_be_listed() {
    let start = DockerRegistry::start_self_signed;
    let Some(good) = start("127.0.0.1", "20200101", "20990101") else {
        // Only if the program is installed.
        return;
    };
    let wrong_name = start("192.0.2.1", "20200101", "20990101").unwrap();
    let expired = start("127.0.0.1", "20200101", "20200102").unwrap();
    let early = start("127.0.0.1", "20980101", "20990101").unwrap();
    for (registry, ca_file, problem) in [
        (&good, good.ca_file(), None),
        (&good, expired.ca_file(), Some("CaUsedAsEndEntity")),
        (&wrong_name, wrong_name.ca_file(), Some("not valid for name")),
        (&expired, expired.ca_file(), Some("expired")),
        (&early, early.ca_file(), Some("not valid yet")),
    ] {
        let config = RegistryConfig { host: registry.host(), ca_file: Some(ca_file), ..Default::default() };
        let error = Bench::with(vec![config]).pull(&format!("{}/app:1", registry.host())).await.unwrap_err();
        // A trusted, empty registry answers that it has no such image.
        assert_eq!(matches!(error, PullError::NotFound { .. }), problem.is_none(), "{error}");
        assert!(problem.is_none_or(|problem| error.to_string().contains(problem)), "{problem:?}: {error}");
    }
    let any = RegistryConfig { host: expired.host(), insecure_skip_verify: true, ..Default::default() };
    let error = Bench::with(vec![any]).pull(&format!("{}/app:1", expired.host())).await.unwrap_err();
    assert!(matches!(error, PullError::NotFound { .. }), "{error}");
}

/// A host that closes each connection gives no reason. The error names the options that may help.
#[tokio::test(flavor = "multi_thread")]
async fn a_closed_connection_is_named_with_the_option() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let host = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            // The unread request makes the kernel reset the connection.
            let connection = connection.unwrap();
            connection.peek(&mut [0]).unwrap();
        }
    });
    for (insecure_skip_verify, option) in
        [(true, "if the registry speaks plain HTTP, set plain_http"), (false, "set ca_file or insecure_skip_verify")]
    {
        let config = RegistryConfig { host: host.clone(), insecure_skip_verify, ..Default::default() };
        let error = Bench::with(vec![config]).pull(&format!("{host}/app:1")).await.unwrap_err();
        assert!(error.to_string().contains(option) && error.recoverable(), "{error}");
        assert!(error.to_string().contains("(docs/configuration.md, \"registry\")"), "{error}");
    }
}

/// A server that has one answer to everything. Returns its address.
fn server_that_says(answer: &'static [u8]) -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let host = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            let mut connection = connection.unwrap();
            std::io::Read::read(&mut connection, &mut [0; 4096]).unwrap();
            std::io::Write::write_all(&mut connection, answer).unwrap();
            // The client closes first, so that it reads the answer.
            while std::io::Read::read(&mut connection, &mut [0; 4096]).is_ok_and(|length| length > 0) {}
        }
    });
    host
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registry_without_tls_is_named_with_the_option() {
    // What a web server says to the first message of TLS.
    let host = server_that_says(b"HTTP/1.0 400 Bad Request\r\n\r\n");
    let config = RegistryConfig { host: host.clone(), insecure_skip_verify: true, ..Default::default() };
    let error = Bench::with(vec![config]).pull(&format!("{host}/app:1")).await.unwrap_err();
    assert!(error.to_string().contains("set plain_http in this registry's block"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registry_with_tls_that_is_asked_without_is_named_with_the_options() {
    let answer = b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nContent-Length: 48\r\n\r\n\
                   Client sent an HTTP request to an HTTPS server.\n";
    let host = server_that_says(answer);
    let error = Bench::with(Vec::new()).pull(&format!("{host}/app:1")).await.unwrap_err();
    let error = error.to_string();
    assert!(error.contains("HTTP status 400; it was asked by plain HTTP"), "{error}");
    assert!(error.contains("set ca_file") && error.contains("(docs/configuration.md, \"registry\")"), "{error}");
}

/// The requests for the manifest since the last call.
fn asked(bench: &Bench) -> Vec<String> {
    let requests = bench.registry.requests();
    bench.registry.forget_requests();
    let about = requests.into_iter().filter(|request| request.path.contains("/manifests/"));
    about.map(|request| request.method).collect()
}

/// Access grants are kept only in memory: another store on the same directory asks again.
async fn start_as(bench: &Bench, reference: &str, user: Option<(&str, &str)>) -> Result<Image, PullError> {
    let credentials = user.and_then(|(user, password)| credentials(user, password));
    let request = PullRequest { credentials, ..request(reference) };
    bench.second_store().acquire(request, "other", Arc::new(Silent)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_private_image_on_disk_is_only_for_callers_that_may_pull_it() {
    const JOE: Option<(&str, &str)> = Some(("joe", "secret"));
    let bench = Bench::new();
    let reference = bench.push("app:1", &small("private"));
    bench.registry.auth(Auth::Basic { user: "joe".into(), password: "secret".into() });
    pull_as(&bench, &reference, "joe", "secret").await.unwrap();
    asked(&bench);
    // The pull itself counts as a grant.
    pull_as(&bench, &reference, "joe", "secret").await.unwrap();
    assert!(asked(&bench).is_empty());
    for other in [None, Some(("joe", "guessed"))] {
        let error = start_as(&bench, &reference, other).await.unwrap_err();
        assert!(matches!(error, PullError::Access { .. }) && !error.recoverable(), "{error}");
        assert!(error.to_string().contains("verify_access") && !error.to_string().contains("guessed"), "{error}");
    }
    assert_eq!(bench.store.leases().unwrap(), ["task"]);
    asked(&bench);
    start_as(&bench, &reference, JOE).await.unwrap();
    // The challenge, then the answer; no content is transferred.
    assert_eq!(asked(&bench), ["HEAD", "HEAD"]);
    // A registry without HEAD is asked for the manifest, and a registry that lost the name is asked for its digest.
    bench.registry.fault(Fault::on("/manifests/", Action::Status(405, Vec::new())).method("HEAD"));
    start_as(&bench, &reference, JOE).await.unwrap();
    bench.registry.heal();
    bench.registry.fault(Fault::on("/manifests/1", Action::Status(404, Vec::new())));
    start_as(&bench, &reference, JOE).await.unwrap();
    bench.registry.heal();
    // Access that the registry took away is denied.
    bench.registry.auth(Auth::Basic { user: "joe".into(), password: "new".into() });
    assert!(!start_as(&bench, &reference, JOE).await.unwrap_err().recoverable());
}

#[tokio::test(flavor = "multi_thread")]
async fn without_its_registry_a_private_image_is_for_earlier_holders() {
    let bench = Bench::new();
    let reference = bench.push("app:1", &small("offline"));
    bench.registry.auth(Auth::Basic { user: "joe".into(), password: "secret".into() });
    pull_as(&bench, &reference, "joe", "secret").await.unwrap();
    bench.registry.fault(Fault::on("/", Action::Status(503, Vec::new())));
    start_as(&bench, &reference, Some(("joe", "secret"))).await.unwrap();
    for other in [None, Some(("ann", "x"))] {
        let error = start_as(&bench, &reference, other).await.unwrap_err();
        assert!(matches!(error, PullError::Access { .. }) && error.recoverable(), "{error}");
    }
    // A caller that had access once is recorded on disk.
    bench.registry.heal();
    bench.registry.auth(Auth::Basic { user: "ann".into(), password: "x".into() });
    start_as(&bench, &reference, Some(("ann", "x"))).await.unwrap();
    bench.registry.fault(Fault::on("/", Action::Status(503, Vec::new())));
    start_as(&bench, &reference, Some(("ann", "x"))).await.unwrap();
    start_as(&bench, &reference, Some(("joe", "secret"))).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_public_image_needs_no_registry() {
    let bench = Bench::new();
    let reference = bench.push("app:1", &small("open"));
    pull_as(&bench, &reference, "joe", "secret").await.unwrap();
    // Pulled with unnecessary credentials: the first caller without credentials gets access, and it is recorded for all
    // callers.
    start_as(&bench, &reference, None).await.unwrap();
    asked(&bench);
    bench.registry.auth(Auth::Basic { user: "joe".into(), password: "secret".into() });
    start_as(&bench, &reference, Some(("ann", "x"))).await.unwrap();
    start_as(&bench, &reference, None).await.unwrap();
    assert!(asked(&bench).is_empty());
    // Without verify_access there is no check.
    let private = bench.push("private:1", &small("private"));
    pull_as(&bench, &private, "joe", "secret").await.unwrap();
    let store = image_store::StoreConfig { verify_access: false, ..config(&bench.root()) };
    let store = image_store::Store::open(store).unwrap();
    store.acquire(request(&private), "unchecked", Arc::new(Silent)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn headers_stay_with_their_registry() {
    let registry = Registry::start();
    let elsewhere = Registry::start();
    let built = small("headers");
    let reference = registry.push("app:1", &built);
    elsewhere.push("app:1", &built);
    registry.fault(Fault::on("/blobs/", Action::Redirect(format!("http://{}{{path}}", elsewhere.host()))));
    let headers = vec![("X-Team".to_owned(), "blue".into())];
    let config = RegistryConfig { host: registry.host(), headers, ..Default::default() };
    Bench::with(vec![config]).pull(&reference).await.unwrap();
    assert!(registry.requests().iter().all(|request| request.header("x-team") == Some("blue")));
    assert!(elsewhere.requests().iter().all(|request| request.header("x-team").is_none()));
    assert!(!elsewhere.requests().is_empty());
    for (name, value) in [("Authorization", "Basic eDp5"), ("a b", "x"), ("X-Team", "a\nb")] {
        let config = RegistryConfig {
            host: "r.example".into(),
            headers: vec![(name.to_owned(), value.into())],
            ..Default::default()
        };
        let root = tempfile::tempdir().unwrap();
        let config =
            image_store::StoreConfig { root: root.path().join("x"), registries: vec![config], ..Default::default() };
        let error = image_store::Store::open(config).unwrap_err().to_string();
        assert!(error.contains(name) && !error.contains("eDp5"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_are_read_again_when_they_change() {
    let Some(registry) = DockerRegistry::start_tls_for_clients() else {
        // Only if the program is installed.
        return;
    };
    let other = DockerRegistry::start_tls_for_clients().unwrap();
    let reference = format!("{}/app:1", registry.host());
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let put = |from: &DockerRegistry| {
        for (source, name) in
            [(from.ca_file(), "ca"), (from.client_cert_file(), "cert"), (from.client_key_file(), "key")]
        {
            let new = at("new");
            std::fs::copy(source, &new).unwrap();
            std::fs::rename(new, at(name)).unwrap();
        }
    };
    put(&other);
    let config = RegistryConfig {
        host: registry.host(),
        ca_file: Some(at("ca")),
        cert_file: Some(at("cert")),
        key_file: Some(at("key")),
        ..Default::default()
    };
    let bench = Bench::with(vec![config]);
    let error = bench.pull(&reference).await.unwrap_err();
    assert!(error.to_string().contains("certificate"), "{error}");
    put(&registry);
    // An empty registry, with trust in both directions, answers that it has no such image.
    let error = bench.pull(&reference).await.unwrap_err();
    assert!(matches!(error, PullError::NotFound { .. }), "{error}");
    // A half-replaced file does no harm.
    std::fs::write(at("key"), "").unwrap();
    assert!(matches!(bench.pull(&reference).await.unwrap_err(), PullError::NotFound { .. }));
    // Without a client certificate the registry refuses the connection.
    let config = RegistryConfig { host: registry.host(), ca_file: Some(at("ca")), ..Default::default() };
    let error = Bench::with(vec![config]).pull(&reference).await.unwrap_err();
    assert!(matches!(error, PullError::Network { .. }), "{error}");
}
