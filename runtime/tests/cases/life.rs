//! A container's life: start, output, end, and what is left.

use crate::common::Node;

pub const CASES: &[(&str, fn())] = &[("life_runs_and_ends", runs_and_ends)];

fn runs_and_ends() {
    let node = Node::new();
    let (exit, out, err) = node.run(node.plan("echo out; echo err >&2; exit 7"));
    assert_eq!((exit.exit_code, exit.signal, exit.oom_killed), (7, 0, false));
    assert_eq!((out.as_str(), err.as_str()), ("out\n", "err\n"));
}
