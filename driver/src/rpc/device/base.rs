//! The base plugin service of the device plugin: its name, version and configuration.

use proto::base::{
    ConfigSchemaRequest, ConfigSchemaResponse, PluginInfoRequest, PluginInfoResponse, PluginType, SetConfigRequest,
    SetConfigResponse, base_plugin_server::BasePlugin,
};
use tonic::{Request, Response, Status};

use super::Devices;
use crate::{config, error::TaskError, name::DEVICE_PLUGIN, rpc::schema};

/// The version of the API of device plugins. Agents support no other.
const API_VERSION: &str = "v0.1.0";

#[tonic::async_trait]
impl BasePlugin for Devices {
    async fn plugin_info(&self, _: Request<PluginInfoRequest>) -> Result<Response<PluginInfoResponse>, Status> {
        Ok(Response::new(PluginInfoResponse {
            r#type: PluginType::Device.into(),
            plugin_api_versions: vec![API_VERSION.to_owned()],
            plugin_version: env!("CARGO_PKG_VERSION").to_owned(),
            name: DEVICE_PLUGIN.to_owned(),
        }))
    }

    async fn config_schema(&self, _: Request<ConfigSchemaRequest>) -> Result<Response<ConfigSchemaResponse>, Status> {
        Ok(Response::new(ConfigSchemaResponse { spec: Some(schema::device_plugin_schema()) }))
    }

    /// Checks and stores the configuration, nothing else: Nomad also calls this only to validate.
    async fn set_config(&self, request: Request<SetConfigRequest>) -> Result<Response<SetConfigResponse>, Status> {
        self.configure(config::decode_device_plugin(&request.into_inner().msgpack_config).map_err(TaskError::from)?);
        Ok(Response::new(SetConfigResponse {}))
    }
}
