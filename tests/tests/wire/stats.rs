//! TaskStats and TaskEvents.

use std::time::{Duration, Instant};

use fixtures::{
    busybox::Images,
    cgroup,
    must::Must,
    wait::{eventually, seconds, within},
};
use kit::node::Node;
use proto::driver::{CpuUsage, MemoryUsage, cpu_usage::Fields as Cpu, memory_usage::Fields as Memory};

#[tokio::test]
async fn the_first_sample_is_immediate_and_the_stream_ends_cleanly() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let script = "x=$(head -c 8000000 /dev/zero | tr '\\0' x); while [ ! -e /local/go ]; do :; done; exit 0";
    let task = node.task(&images.busybox()).sh(script).build(&mut plugin).await;
    plugin.started(&task).await;
    let mut stream = plugin.stats(task.id(), Duration::from_millis(200)).await.must("TaskStats");
    let begun = Instant::now();
    let mut samples: Vec<(CpuUsage, MemoryUsage)> = Vec::new();
    let busy = |samples: &[(CpuUsage, MemoryUsage)]| {
        samples.len() >= 6 && samples.last().is_some_and(|(cpu, memory)| cpu.percent > 20.0 && memory.rss > 4_000_000)
    };
    // The script allocates its memory gradually.
    while !busy(&samples) && begun.elapsed() < seconds(30) {
        let message = within(seconds(5), "a sample", stream.message()).await.must("TaskStats").must("a sample");
        let stats = message.stats.must("stats");
        assert_eq!(stats.id, task.id());
        stats.timestamp.as_ref().must("a timestamp");
        let usage = stats.agg_resource_usage.must("agg_resource_usage");
        samples.push((usage.cpu.must("cpu"), usage.memory.must("memory")));
    }
    let (first, _) = &samples[0];
    assert!(first.percent.abs() < f64::EPSILON, "the first sample has nothing to compare with: {first:?}");
    let (cpu, memory) = samples.last().must("samples");
    assert!(cpu.percent > 20.0 && cpu.percent < 210.0, "a busy loop: {cpu:?}");
    let ticks = cpu.percent / 100.0 * 2000.0;
    assert!((cpu.total_ticks - ticks).abs() < 1.0, "MHz of cores of 2000: {cpu:?}");
    for field in [Cpu::Percent, Cpu::TotalTicks, Cpu::SystemMode, Cpu::UserMode] {
        assert!(cpu.measured_fields.contains(&i32::from(field)), "{field:?}: {cpu:?}");
    }
    assert!(memory.rss > 4_000_000, "{memory:?}");
    assert!(memory.measured_fields.contains(&i32::from(Memory::Rss)), "{memory:?}");
    let max_is_measured = memory.measured_fields.contains(&i32::from(Memory::MaxUsage));
    assert_eq!(max_is_measured, memory.max_usage > 0, "measured fields are those that are filled: {memory:?}");
    if cgroup::mode() == cgroup::Mode::V1 {
        assert!(max_is_measured);
    }
    std::fs::write(task.dir().join("local/go"), "").must("end the task");
    plugin.wait(task.id()).await;
    // The agent would log an error at the end every second.
    let end = within(seconds(5), "the end of the stream", async {
        loop {
            match stream.message().await {
                Ok(Some(_)) => {}
                other => return other,
            }
        }
    });
    assert!(end.await.must("an end without error").is_none());
    // The agent asks once more after the end. This must not fail.
    let mut again = plugin.stats(task.id(), Duration::from_millis(200)).await.must("TaskStats of an ended task");
    while within(seconds(5), "the end", again.message()).await.must("TaskStats of an ended task").is_some() {}
    plugin.destroy(task.id(), true).await.must("DestroyTask");
    node.finish(plugin).await;
}

/// The counters' files are opened once per stream and closed with it. Without a stream, none is open.
#[tokio::test]
async fn a_stream_keeps_one_set_of_open_files() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let task = node.task(&images.busybox()).sh("sleep 1000").build(&mut plugin).await;
    plugin.started(&task).await;
    let counters = || {
        plugin
            .descriptors()
            .iter()
            // The files for events stay open as long as the task runs.
            .filter(|file| file.contains("/sys/fs/cgroup/") && !file.ends_with(".events"))
            .count()
    };
    // Events before that are read once.
    assert!(eventually(seconds(5), || counters() == 0).await, "{:#?}", plugin.descriptors());
    let mut stream = plugin.stats(task.id(), Duration::from_millis(100)).await.must("TaskStats");
    let mut open = Vec::new();
    for _ in 0..4 {
        within(seconds(5), "a sample", stream.message()).await.must("TaskStats").must("a sample");
        open.push(counters());
    }
    assert!(open[0] > 3 && open.iter().all(|count| *count == open[0]), "{open:?}");
    drop(stream);
    assert!(eventually(seconds(5), || counters() == 0).await, "{:#?}", plugin.descriptors());
    plugin.end(&task).await;
    node.finish(plugin).await;
}

#[tokio::test]
async fn the_pull_is_reported_by_events() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let task = node.task(&images.busybox()).sh("exit 0").build(&mut plugin).await;
    plugin.started(&task).await;
    let event = plugin.streams.event("an event of the pull", |event| event.alloc_id == task.alloc.id).await;
    assert_eq!((event.task_name.as_str(), event.task_id.as_str()), ("main", task.id()));
    assert!(event.message.to_lowercase().contains("image"), "{event:?}");
    event.timestamp.must("a timestamp");
    let started = plugin.streams.event("the start", |event| event.message.starts_with("Started container")).await;
    assert!(started.annotations["digest"].starts_with("sha256:"), "{started:?}");
    for phase in ["pull_ms", "plan_ms", "start_ms"] {
        started.annotations[phase].parse::<u64>().must("milliseconds");
    }
    plugin.wait(task.id()).await;
    plugin.destroy(task.id(), true).await.must("DestroyTask");
    // Nomad keeps only the last ten events of a task, so an ordinary start emits few. On a slow machine a pull also
    // says that it waits.
    let events = plugin.streams.events();
    let ordinary = events.iter().filter(|event| !event.message.starts_with("Image: waiting"));
    assert!(ordinary.count() <= 4, "{events:?}");
    node.finish(plugin).await;
}
