//! Who may read from the registry in memory, and how it says no.

use base64::{Engine, prelude::BASE64_STANDARD};
use serde_json::json;

use super::{Request, Shared, State, serve::Answer};

/// Who may read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Auth {
    /// Everybody.
    #[default]
    Open,
    /// One user, by the Basic scheme.
    Basic {
        /// The user.
        user: String,
        /// The password.
        password: String,
    },
    /// Whoever brings a token of our token server.
    Bearer {
        /// The user that gets one; everybody if there is none.
        user: Option<(String, String)>,
        /// Where the token server is said to be; here if nothing is said.
        realm: Option<String>,
    },
}

fn basic(user: &str, password: &str) -> String {
    format!("Basic {}", BASE64_STANDARD.encode(format!("{user}:{password}")))
}

pub(super) fn token(state: &State, request: &Request) -> Answer {
    let Auth::Bearer { user, .. } = &state.auth else {
        return Answer::error(404, "NOT_FOUND");
    };
    if let Some((user, password)) = user {
        let by_header = request.header("authorization") == Some(&basic(user, password));
        let by_refresh = request.body.contains(&format!("refresh_token={password}"));
        if !by_header && !by_refresh {
            return Answer::error(401, "UNAUTHORIZED");
        }
    }
    let body = json!({"token": state.token, "expires_in": 300});
    Answer::new(200, body.to_string()).with("Content-Type", "application/json")
}

pub(super) fn refusal(shared: &Shared, state: &State, request: &Request) -> Option<Answer> {
    let given = request.header("authorization");
    let (wanted, challenge) = match &state.auth {
        Auth::Open => return None,
        Auth::Basic { user, password } => (basic(user, password), r#"Basic realm="kit, of tests""#.to_owned()),
        Auth::Bearer { realm, .. } => {
            let here = format!("http://{}/token", shared.address);
            let realm = realm.as_deref().unwrap_or(&here);
            (format!("Bearer {}", state.token), format!(r#"Bearer realm="{realm}",service="kit""#))
        }
    };
    (given != Some(&wanted)).then(|| Answer::error(401, "UNAUTHORIZED").with("WWW-Authenticate", challenge))
}
