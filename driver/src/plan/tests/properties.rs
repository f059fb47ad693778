//! Properties that hold for any job.

use super::*;

/// Paths of few letters, so that they are often equal or nested.
fn path() -> impl Strategy<Value = String> {
    "(/?(a|b|alloc|logs|\\.|\\.\\.)){1,4}/?"
}

proptest! {
    #[test]
    fn clean_paths_are_absolute_and_have_no_dots(path in path()) {
        let cleaned = normalize_container_path(&path);
        prop_assert!(cleaned.starts_with('/'));
        prop_assert!(cleaned == "/" || !cleaned.ends_with('/'));
        prop_assert!(cleaned.split('/').skip(1).all(|part| part != "." && part != ".."));
        prop_assert_eq!(normalize_container_path(&cleaned), cleaned.clone());
    }

    #[test]
    fn mounts_never_hide_earlier_ones_and_never_leave_the_allocation(
        volumes in prop::collection::vec((path(), path(), "(:(ro|rslave|rshared|ro,rshared))?"), 0..6),
    ) {
        let volume = |(source, target, options)| format!("{source}:/t/{target}{options}");
        let volumes: Vec<String> = volumes.into_iter().map(volume).collect();
        let policy = Policy { allow_shared: true, ..Policy::default() };
        // The decoder refuses targets that normalize to the root.
        let block = json!({ "image": "nginx", "volumes": volumes });
        let Ok(spec) = decode_task(&from_json(&block), &policy) else { return Ok(()) };
        let mounted_images = BTreeMap::new();
        let (task, image, node) = (task(), image(), node());
        let case = Case { spec, task, image, mounted_images, node, policy, attachment: None, edits: None };
        let Ok(plan) = case.plan() else { return Ok(()) };
        let mounts = &plan.container.mounts;
        for (index, mount) in mounts.iter().enumerate() {
            let below = format!("{}/", mount.destination);
            prop_assert!(mounts[..index].iter().all(|earlier| !earlier.destination.starts_with(&below)));
            prop_assert!(mounts[..index].iter().all(|earlier| earlier.destination != mount.destination));
            let MountKind::Bind { source } = &mount.kind else { continue };
            prop_assert!(source.starts_with(&case.task.alloc_dir));
            prop_assert!(plan.confined_sources.contains(source));
            let (logs, tasks) = (in_alloc("alloc/logs"), in_alloc("alloc/logs/tasks"));
            prop_assert!(!source.starts_with(&logs) || source.starts_with(&tasks) || mount.readonly);
            if mount.propagation == Propagation::Bidirectional {
                prop_assert!(!source.starts_with(&logs) && !logs.starts_with(source));
            }
            // No writable mount shows Nomad's logs.
            if let Ok(rest) = logs.strip_prefix(source)
                && !mount.readonly
            {
                let logs = PathBuf::from(&mount.destination).join(rest);
                let covers = |mount: &Mount| std::path::Path::new(&mount.destination) == logs;
                prop_assert!(mounts.iter().any(covers));
            }
        }
    }

    #[test]
    fn the_environment_has_every_name_once_and_the_last_value(
        image_env in prop::collection::vec(("[ab]{1,2}", "[a-z]{0,3}"), 0..6),
        task_env in prop::collection::btree_map("[ab]{1,2}", "[a-z]{0,3}", 0..6),
    ) {
        let mut case = Case::new(json!({}));
        case.image.config.env = image_env.clone();
        case.task.env = task_env.clone();
        let env = case.container().env;
        let map: BTreeMap<String, String> = env.iter().cloned().collect();
        prop_assert_eq!(map.len(), env.len());
        let mut expected: BTreeMap<String, String> = image_env.into_iter().collect();
        expected.extend(task_env);
        for (name, value) in expected {
            prop_assert_eq!(&map[&name], &value);
        }
    }

    #[test]
    fn the_images_command_runs_only_with_its_own_entrypoint(
        entrypoint in prop::option::of(prop::collection::vec("[e-f]", 1..3)),
        command in prop::option::of("[c-d]"),
        args in prop::collection::vec("[x-z]", 0..3),
    ) {
        let mut case = Case::new(json!({}));
        case.spec.entrypoint = entrypoint.clone();
        case.spec.command = command.clone();
        case.spec.args = args.clone();
        let line = case.container().args;
        let first = entrypoint.clone().unwrap_or_else(|| vec!["/entry".into()]);
        prop_assert_eq!(&line[..first.len()], &first[..]);
        let rest: Vec<String> = command.into_iter().chain(args).collect();
        let image_cmd = vec!["serve".to_owned(), "-v".to_owned()];
        let expected = if rest.is_empty() && entrypoint.is_none() { image_cmd } else { rest };
        prop_assert_eq!(&line[first.len()..], &expected[..]);
    }

    #[test]
    fn every_plan_survives_json(
        memory in 0_i64..1 << 40,
        mhz in any::<i64>(),
        percent in any::<f64>(),
        host in any::<String>(),
    ) {
        let mut case = Case::new(json!({ "cpu_hard_limit": true, "extra_hosts": ["a:::1"] }));
        case.task.resources.memory_mb = memory;
        case.task.resources.cpu_shares = mhz;
        case.task.resources.percent_ticks = percent;
        case.node.host_resolv_conf = host;
        let container = case.container();
        let text = serde_json::to_string(&container).unwrap();
        prop_assert_eq!(serde_json::from_str::<ContainerPlan>(&text).unwrap(), container);
    }
}
