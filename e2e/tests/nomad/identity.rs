//! Workload identities, Nomad's API inside a task, actions, and `nomad alloc fs`.

use e2e::{Job, Outcome};

use crate::{Case, Env, Needs::SharedAgent, templates::wait_file};

pub const CASES: &[Case] = &[("identity_api_action_and_files", SharedAgent, identity_api_action_and_files)];

fn identity_api_action_and_files(env: &Env) -> Outcome {
    let image = env.registry.make("curl")?;
    let alloc = env.agent.run(&Job::new("identity").var("image", &image))?;
    alloc.wait_running()?;

    // Both identities are in files and in the environment. They are tokens of three parts.
    let look = "[ \"$(cat /secrets/nomad_token)\" = \"$NOMAD_TOKEN\" ] && echo same; \
                [ \"$(cat /secrets/nomad_elsewhere.jwt)\" = \"$NOMAD_TOKEN_elsewhere\" ] && echo same; \
                echo \"$NOMAD_TOKEN\" | tr -cd . | wc -c; echo \"$NOMAD_TOKEN_elsewhere\" | tr -cd . | wc -c";
    assert_eq!(alloc.sh(look)?, "same\nsame\n2\n2\n");

    // The task calls Nomad's API with its identity, also after a restart of the agent, which makes a new socket.
    let call = "url=http://localhost/v1/agent/self; \
                curl -fsS --unix-socket /secrets/api.sock -H \"Authorization: Bearer $NOMAD_TOKEN\" $url >/dev/null && \
                echo answered; curl -sS -o /dev/null -w '%{http_code}\\n' --unix-socket /secrets/api.sock $url";
    assert_eq!(alloc.sh(call)?, "answered\n401\n", "without the identity, the API refuses");

    let output = env.agent.nomad(&[
        "action", "-i=false", "-t=false", "-job", &alloc.job, "-alloc", &alloc.id, "-task", "identity", "greet",
    ])?;
    assert_eq!(String::from_utf8_lossy(&output.stdout), format!("hello, app in {}\n", alloc.id), "{output:?}");
    assert_eq!(output.status.code(), Some(6), "{output:?}");

    wait_file(&alloc, "note", "kept\n")?;
    let files = |words: &[&str]| -> Outcome<String> {
        let output = env.agent.nomad(&[&["alloc", "fs"], words].concat())?;
        assert!(output.status.success(), "{words:?}: {output:?}");
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    };
    assert_eq!(files(&[&alloc.id, "alloc/data/note"])?, "kept\n");
    let listed = files(&[&alloc.id, "identity/"])?;
    assert!(["local/", "secrets/", "tmp/"].iter().all(|name| listed.contains(name)), "{listed}");
    let stat = files(&["-stat", &alloc.id, "alloc/data/note"])?;
    assert!(stat.contains("-rw-r--r--") && stat.contains("note"), "{stat}");
    // Nomad does not show the task's secrets.
    let output = env.agent.nomad(&["alloc", "fs", &alloc.id, "identity/secrets/nomad_token"])?;
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(said.contains("prohibited"), "{said}");
    alloc.stop()?;
    assert_eq!(alloc.wait_exit()?.code, 0, "{:?}", alloc.events()?);
    Ok(())
}
