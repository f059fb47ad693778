//! Access control of an agent: the first token, and tokens with few rights.

use serde_json::json;

use crate::{Failure, Outcome, api::Api};

/// The first token of every agent with access control. It may do everything.
pub(crate) const MANAGEMENT: &str = "2b778dd9-f5f1-6f29-b4b4-9a5fa948757a";

/// Makes the first token.
pub(crate) fn bootstrap(api: &Api) -> Outcome {
    api.put("/v1/acl/bootstrap", &json!({ "BootstrapSecret": MANAGEMENT })).map(drop)
}

/// Makes a token with these rules.
pub(crate) fn token(api: &Api, name: &str, rules: &str) -> Outcome<String> {
    api.put(&format!("/v1/acl/policy/{name}"), &json!({ "Name": name, "Rules": rules }))?;
    let token = api.put("/v1/acl/token", &json!({ "Name": name, "Type": "client", "Policies": [name] }))?;
    let secret = token["SecretID"].as_str().map(str::to_owned);
    secret.ok_or_else(|| Failure(format!("no token in {token}")))
}
