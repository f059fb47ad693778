//! The device plugin's values in their form on the wire. Every nested message is there: an agent reads some unchecked.

use std::time::SystemTime;

use proto::{
    device::{
        ContainerReservation, DetectedDevice, DeviceGroup, DeviceGroupStats, DeviceLocality, DeviceSpec, DeviceStats,
        FingerprintResponse, Mount, ReserveResponse, StatsResponse,
    },
    structs::{self, StatObject, StatValue, attribute},
};

use crate::{
    device_plugin::{Attribute, AttributeValue, Detected, Group, Reservation},
    rpc::convert::timestamp,
};

/// The description of a device that can be used.
const HEALTHY: &str = "healthy";

/// All groups.
pub fn fingerprint(groups: &[Group]) -> FingerprintResponse {
    let group = |group: &Group| DeviceGroup {
        vendor: group.vendor.clone(),
        device_type: group.class.clone(),
        device_name: group.name.clone(),
        devices: group.devices.iter().map(detected).collect(),
        attributes: group.attributes.iter().map(|(name, value)| (name.clone(), attribute(value))).collect(),
    };
    FingerprintResponse { device_group: groups.iter().map(group).collect() }
}

fn detected(device: &Detected) -> DetectedDevice {
    DetectedDevice {
        id: device.id.clone(),
        healthy: device.problem.is_none(),
        health_description: device.problem.clone().unwrap_or_default(),
        hw_locality: Some(DeviceLocality { pci_bus_id: device.pci_bus_id.clone().unwrap_or_default() }),
    }
}

fn attribute(attribute: &Attribute) -> structs::Attribute {
    let value = match attribute.value.clone() {
        AttributeValue::Text(text) => attribute::Value::StringVal(text),
        AttributeValue::Flag(flag) => attribute::Value::BoolVal(flag),
        AttributeValue::Number(number) => attribute::Value::IntVal(number),
        AttributeValue::Fraction(number) => attribute::Value::FloatVal(number),
    };
    structs::Attribute { value: Some(value), unit: attribute.unit.to_owned() }
}

/// What a task gets.
pub fn reservation(reservation: Reservation) -> ReserveResponse {
    let mounts = reservation.mounts.into_iter().map(|mount| Mount {
        task_path: mount.task_path,
        host_path: mount.host_path,
        read_only: mount.read_only,
    });
    let devices = reservation.devices.into_iter().map(|device| DeviceSpec {
        task_path: device.task_path,
        host_path: device.host_path,
        permissions: device.permissions,
    });
    let container = ContainerReservation {
        envs: reservation.env.into_iter().collect(),
        mounts: mounts.collect(),
        devices: devices.collect(),
    };
    ReserveResponse { container_res: Some(container) }
}

/// The health of all devices.
pub fn stats(groups: &[Group]) -> StatsResponse {
    let now = timestamp(SystemTime::now());
    let stats = |device: &Detected| {
        let health = StatValue {
            string_val: Some(device.problem.clone().unwrap_or_else(|| HEALTHY.to_owned())),
            desc: "Health".to_owned(),
            ..StatValue::default()
        };
        let attributes = [("Health".to_owned(), health.clone())].into();
        let stats = StatObject { attributes, ..StatObject::default() };
        (device.id.clone(), DeviceStats { summary: Some(health), stats: Some(stats), timestamp: Some(now) })
    };
    let group = |group: &Group| DeviceGroupStats {
        vendor: group.vendor.clone(),
        r#type: group.class.clone(),
        name: group.name.clone(),
        instance_stats: group.devices.iter().map(stats).collect(),
    };
    StatsResponse { groups: groups.iter().map(group).collect() }
}
