//! A parameterised batch job with a payload and artifacts.

use e2e::{Failure, Job, Outcome};
use serde_json::json;

use crate::{Case, Env, Needs::SharedAgent, service::web};

pub const CASES: &[Case] = &[("dispatch_with_payload_and_artifacts", SharedAgent, with_payload_and_artifacts)];

const JOB: &str = "dispatch";
/// "several words" in base64.
const PAYLOAD: &str = "c2V2ZXJhbCB3b3Jkcw==";

fn with_payload_and_artifacts(env: &Env) -> Outcome {
    // The artifacts' server is a task of the driver, too.
    let server = web(env)?;
    server.sh("mkdir -p /tmp/files/bin && printf '#!/bin/sh\\necho a tool\\n' >/tmp/files/bin/tool && \
         chmod 755 /tmp/files/bin/tool && tar -czf /www/files.tar.gz -C /tmp/files .")?;
    env.agent.submit(&Job::new("dispatch").var("image", &env.registry.image()), JOB)?;
    let source = format!("http://{}", server.address("http")?);
    for color in ["red", "green"] {
        let request = json!({ "Payload": PAYLOAD, "Meta": { "source": source, "color": color } });
        let answer = env.agent.api().put(&format!("/v1/job/{JOB}/dispatch"), &request)?;
        let job = answer["DispatchedJobID"].as_str().ok_or_else(|| Failure(format!("no job in {answer}")))?;
        let alloc = env.agent.placed(job, 1)?.swap_remove(0);
        assert_eq!(alloc.wait_exit()?.code, 0, "{:?}", alloc.events()?);
        let expected = format!("{color}: several words\n<h1>Hello from oci-rs</h1>\na tool\n");
        alloc.wait_log("stdout", |log| log == expected.as_bytes())?;
    }
    server.stop()
}
