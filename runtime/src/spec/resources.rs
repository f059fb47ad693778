//! Limits of the container's cgroup.

use std::collections::HashMap;

use oci_spec::runtime::{
    LinuxCpu, LinuxDeviceCgroup, LinuxDeviceCgroupBuilder, LinuxMemory, LinuxPidsBuilder, LinuxResources,
};

use super::{device::HostDevice, error::SpecError, inputs::SpecInputs};
use crate::{cgroup::Version, plan::ContainerPlan};

/// The limits of the plan, and the device rules.
pub(super) fn resources(plan: &ContainerPlan, inputs: &SpecInputs<'_>) -> Result<LinuxResources, SpecError> {
    let limits = &plan.resources;
    let mut memory = LinuxMemory::default();
    let bytes = |bytes: u64| i64::try_from(bytes).unwrap_or(-1);
    memory.set_limit(limits.memory_limit.map(bytes)).set_reservation(limits.memory_reservation.map(bytes));
    let mut resources = LinuxResources::default();
    if inputs.cgroup_version == Version::V1 {
        // Without a memory limit, or without swap accounting, only the swappiness can keep a task from swapping.
        // Version 2 has no such file.
        memory.set_swappiness(Some(0));
    }
    if inputs.swap_accounting {
        // Memory and swap together: no swap beyond the limit.
        memory.set_swap(limits.memory_limit.map(bytes));
        if inputs.cgroup_version == Version::V2 {
            // Version 2 limits swap apart from memory. libcontainer does not write the difference of the two limits if
            // it is 0.
            resources.set_unified(Some(HashMap::from([("memory.swap.max".to_owned(), "0".to_owned())])));
        }
    }
    let mut cpu = LinuxCpu::default();
    cpu.set_shares(limits.cpu_shares).set_quota(limits.cpu_quota).set_period(limits.cpu_period);
    if plan.cgroup.cpuset_v1.is_none() || inputs.cgroup_version == Version::V2 {
        cpu.set_cpus(limits.cpuset_cpus.clone()).set_mems(limits.cpuset_mems.clone());
    }
    if let Some(limit) = limits.pids_limit {
        resources.set_pids(Some(LinuxPidsBuilder::default().limit(limit).build()?));
    }
    resources.set_memory(Some(memory)).set_cpu(Some(cpu)).set_devices(Some(device_rules(plan, inputs)?));
    Ok(resources)
}

/// Denies all devices but the listed ones. Every OCI runtime adds the standard devices.
fn device_rules(plan: &ContainerPlan, inputs: &SpecInputs<'_>) -> Result<Vec<LinuxDeviceCgroup>, SpecError> {
    let all = |allow: bool| LinuxDeviceCgroupBuilder::default().allow(allow).access("rwm").build();
    if plan.security.privileged {
        return Ok(vec![all(true)?]);
    }
    let mut rules = vec![all(false)?];
    for device in inputs.devices {
        rules.extend(HostDevice::rule(device)?);
    }
    Ok(rules)
}
