//! The switch on a running node: the plugin takes docker's name while Nomad's docker driver has running tasks. Without
//! `OCI_RS_PARITY` it is skipped, because it starts a dockerd.

use std::{
    env, fs,
    io::{Read, Write},
    os::unix::net::UnixStream,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    thread,
    time::{Duration, Instant},
};

use e2e::{Alloc, Failure, Job, Outcome, Tools, api::fetch, network};
use parity::{dockerd, node::Node};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(60);

#[test]
fn running_docker_tasks_are_replaced() -> Outcome {
    if env::var_os("OCI_RS_PARITY").is_none() {
        return Ok(());
    }
    let node = Node::start(&Tools::find()?, &dockerd::find()?, network::enter()?)?;
    let outcome = catch_unwind(AssertUnwindSafe(|| switch(&node)));
    if !matches!(outcome, Ok(Ok(()))) {
        let diagnosis = node.agent.diagnose();
        node.take_down();
        return Err(Failure(format!("{outcome:?}\n{diagnosis}")));
    }
    let left = node.close()?;
    assert_eq!(left, Vec::<String>::new());
    Ok(())
}

fn switch(node: &Node) -> Outcome {
    let agent = &node.agent;
    let allocs = agent.run_many(&Job::new("docker_switch").var("image", &node.images.reference("nothing")), 2)?;
    for alloc in &allocs {
        patiently(|| (starts(alloc) == "started\n").then_some(()))?;
    }
    let of_group = |group: &str| allocs.iter().find(|alloc| alloc.get().is_ok_and(|alloc| alloc["TaskGroup"] == group));
    let web = of_group("web").ok_or_else(|| Failure("no group web".to_owned()))?;
    let inlet = format!("http://{}/", web.address("http")?);
    patiently(|| fetch(&inlet).is_ok_and(|page| page.trim() == web.id).then_some(()))?;
    assert_eq!(containers(&node.dockerd.socket())?.len(), 3, "two tasks and a pause container");

    agent.stop()?;
    fs::hard_link(agent.driver(), agent.path().join("plugins/docker"))?;
    let file = agent.path().join("client.overrides.hcl");
    let directories = format!("state_dir = \"{0}/state\"\ndata_dir = \"{0}/data\"\n", agent.path().display());
    let network = "network {\ndefault_mode = \"host\"\n}\n";
    let block = "plugin \"docker\" {\n  config {\n";
    let text = fs::read_to_string(&file)?;
    assert!(text.contains(block), "{text}");
    fs::write(&file, text.replace(block, &format!("{block}{directories}{network}")))?;
    agent.launch()?;

    for alloc in &allocs {
        patiently(|| (starts(alloc).matches("started\n").count() == 2).then_some(()))?;
        let ours = |events: Vec<String>| events.iter().any(|event| event.contains("Started container from"));
        patiently(|| alloc.events().is_ok_and(ours).then_some(()))?;
    }
    let plain = of_group("plain").map(starts).unwrap_or_default();
    assert_eq!(plain, "started\nstopped\nstarted\n", "the old one had ended");
    patiently(|| fetch(&inlet).is_ok_and(|page| page.trim() == web.id).then_some(()))?;
    assert_eq!(containers(&node.dockerd.socket())?, [format!("/nomad_init_{}", web.id)]);
    agent.purge()?;
    patiently(|| containers(&node.dockerd.socket()).is_ok_and(|left| left.is_empty()).then_some(()))
}

fn starts(alloc: &Alloc) -> String {
    fs::read_to_string(alloc.shared_directory().join("data/starts")).unwrap_or_default()
}

fn patiently(ready: impl Fn() -> Option<()>) -> Outcome {
    let deadline = Instant::now() + LIMIT;
    while ready().is_none() {
        if Instant::now() > deadline {
            return Err(Failure("it does not become ready".to_owned()));
        }
        thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

/// The names of dockerd's containers.
fn containers(socket: &Path) -> Outcome<Vec<String>> {
    let mut stream = UnixStream::connect(socket)?;
    stream.write_all(b"GET /containers/json?all=true HTTP/1.0\r\nHost: docker\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    let list: Value = serde_json::from_str(body).map_err(|error| Failure(format!("{error}: {answer}")))?;
    let names = list.as_array().into_iter().flatten().filter_map(|one| one["Names"][0].as_str());
    Ok(names.map(str::to_owned).collect())
}
