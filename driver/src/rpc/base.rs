//! The base plugin service: the plugin's name, version and configuration.

use image_store::RegistryConfig;
use proto::base::{
    ConfigSchemaRequest, ConfigSchemaResponse, NomadConfig, PluginInfoRequest, PluginInfoResponse, PluginType,
    SetConfigRequest, SetConfigResponse, base_plugin_server::BasePlugin,
};
use tonic::{Request, Response, Status};

use super::{
    schema,
    state::{Configured, Plugin},
};
use crate::{blocking::blocking, config, error::TaskError, plan::Compute};

/// The version of the driver API. Agents support no other.
const API_VERSION: &str = "v0.1.0";

#[tonic::async_trait]
impl BasePlugin for Plugin {
    async fn plugin_info(&self, _: Request<PluginInfoRequest>) -> Result<Response<PluginInfoResponse>, Status> {
        Ok(Response::new(PluginInfoResponse {
            r#type: PluginType::Driver.into(),
            plugin_api_versions: vec![API_VERSION.to_owned()],
            plugin_version: self.driver().plugin_version().to_owned(),
            name: self.driver().to_string(),
        }))
    }

    async fn config_schema(&self, _: Request<ConfigSchemaRequest>) -> Result<Response<ConfigSchemaResponse>, Status> {
        Ok(Response::new(ConfigSchemaResponse { spec: Some(schema::plugin_schema()) }))
    }

    /// Checks and stores the configuration, nothing else. An error prevents the start of the whole agent, so only an
    /// invalid configuration is refused, and one that names certificate files that cannot be used.
    async fn set_config(&self, request: Request<SetConfigRequest>) -> Result<Response<SetConfigResponse>, Status> {
        let request = request.into_inner();
        let config = config::decode_plugin(&request.msgpack_config, self.driver()).map_err(TaskError::from)?;
        let registries = config.registries.clone();
        blocking(move || check_certificates(&registries)).await?;
        let agent = request.nomad_config.as_ref();
        let (compute, is_applied) = (compute(agent), agent.is_some());
        self.configure(Configured { config, block: request.msgpack_config, compute, is_applied });
        Ok(Response::new(SetConfigResponse {}))
    }
}

/// Checks that the certificate files of the registries can be used: the agent's start is the time at which the operator
/// looks. Blocks.
fn check_certificates(registries: &[RegistryConfig]) -> Result<(), TaskError> {
    registries.iter().try_for_each(image_store::check_registry).map_err(|error| {
        TaskError::Invalid(format!(
            "plugin config: {error}; repair the file or remove the option (docs/configuration.md, \"registry\")"
        ))
    })
}

/// The node's CPU capacity as the agent counts it: the operator's override, or the sum of each core's best known
/// speed.
fn compute(config: Option<&NomadConfig>) -> Compute {
    let topology = config.and_then(|config| config.driver.as_ref()).and_then(|driver| driver.topology.as_ref());
    let Some(topology) = topology else { return Compute::default() };
    let speed = |core: &proto::base::ClientTopologyCore| {
        [core.max_speed, core.base_speed, core.guess_speed].into_iter().find(|speed| *speed > 0).unwrap_or(0)
    };
    let total_mhz = match topology.override_total_compute {
        0 => topology.cores.iter().map(speed).sum(),
        total => total,
    };
    Compute { total_mhz, cores: topology.cores.len() as u64 }
}

#[cfg(test)]
mod tests {
    use proto::base::{ClientTopology, ClientTopologyCore, NomadConfig, NomadDriverConfig};

    use super::compute;
    use crate::plan::Compute;

    fn node(override_total_compute: u64) -> NomadConfig {
        let core =
            |max_speed, base_speed| ClientTopologyCore { max_speed, base_speed, guess_speed: 1, ..Default::default() };
        let topology = ClientTopology {
            cores: vec![core(3000, 2000), core(0, 2000)],
            override_total_compute,
            ..Default::default()
        };
        NomadConfig { driver: Some(NomadDriverConfig { topology: Some(topology), ..Default::default() }) }
    }

    #[test]
    fn compute_is_the_best_known_speed_of_each_core_unless_overridden() {
        assert_eq!(compute(Some(&node(0))), Compute { total_mhz: 5000, cores: 2 });
        assert_eq!(compute(Some(&node(700))), Compute { total_mhz: 700, cores: 2 });
        assert_eq!(compute(None), Compute::default());
    }
}
