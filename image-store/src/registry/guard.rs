//! The addresses to which a registry may send us: redirects and token servers on other hosts.
//!
//! A registry must not use this node to reach what only the node can reach. So another host may have global addresses,
//! and loopback and private ones if the registry itself has such an address: a registry in a private
//! network may have its storage
//! there, and so may a registry on this machine. [`InternalRedirects`] admits more.
//!
//! Addresses in URLs are checked before the request. Names are checked when the HTTP client resolves them, so that the
//! checked address is the one that is connected to. Behind a proxy the proxy resolves names, and its operator decides.

use std::{
    collections::{BTreeSet, HashSet},
    fmt,
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
};

use reqwest::{
    Url,
    dns::{Addrs, Name, Resolve, Resolving},
};

use super::{
    address::{Scope, literal_scope, scope},
    config::InternalRedirects,
};

/// A part of the text of each refusal.
pub(super) const REFUSED: &str = "an internal address that the registry itself is not on";

/// The addresses of other hosts that a registry may name.
#[derive(Debug)]
pub(super) struct Guard {
    registry: Url,
    /// The scopes that are admitted for every registry.
    always: BTreeSet<Scope>,
    /// The names of other hosts that the registry named. Other names that are resolved are those of proxies.
    named: Mutex<HashSet<String>>,
}

/// An address that a registry must not name.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RefusedAddress {
    host: String,
    address: Option<IpAddr>,
}

impl fmt::Display for RefusedAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, address } = self;
        let address = address.map(|address| format!(" ({address})")).unwrap_or_default();
        write!(f, "{host}{address} is {REFUSED}: if it belongs to it, set internal_redirects in the registry's block")
    }
}

impl std::error::Error for RefusedAddress {}

impl Guard {
    /// The guard of a registry. `None`: it may name every address.
    pub(super) fn of(registry: Url, internal: InternalRedirects) -> Option<Arc<Self>> {
        let always = match internal {
            InternalRedirects::OfRegistry => BTreeSet::from([Scope::Global]),
            InternalRedirects::ExceptLinkLocal => BTreeSet::from([Scope::Global, Scope::Private, Scope::Machine]),
            InternalRedirects::All => return None,
        };
        Some(Arc::new(Self { registry, always, named: Mutex::default() }))
    }

    /// Checks a URL on another host, if its host is an address. Otherwise the name is checked when it is resolved.
    pub(super) async fn check(&self, url: &Url) -> Result<(), RefusedAddress> {
        let host = url.host_str().unwrap_or_default().to_owned();
        match literal_scope(url) {
            Some(scope) if self.always.contains(&scope) || self.scopes().await.contains(&scope) => Ok(()),
            Some(_) => Err(RefusedAddress { host, address: None }),
            None => {
                self.named.lock().unwrap_or_else(PoisonError::into_inner).insert(host);
                Ok(())
            }
        }
    }

    /// The scopes that the registry may name.
    async fn scopes(&self) -> BTreeSet<Scope> {
        let mut scopes = self.always.clone();
        if let Some(scope) = literal_scope(&self.registry) {
            scopes.insert(scope);
        } else {
            let host = self.registry.host_str().unwrap_or_default();
            // A name that cannot be resolved here is resolved by a proxy. Then it gives no permission.
            let found = tokio::net::lookup_host((host, 0)).await;
            scopes.extend(found.into_iter().flatten().map(|address| scope(address.ip())));
        }
        // Cloud providers serve a machine's credentials on a link-local address.
        scopes.remove(&Scope::Link);
        // Its token server or its storage may be in this machine's network.
        if scopes.contains(&Scope::Machine) {
            scopes.insert(Scope::Private);
        }
        scopes
    }

    /// Those of the found addresses of a host that may be used.
    fn admit(host: &str, found: Vec<SocketAddr>, scopes: &BTreeSet<Scope>) -> Result<Vec<SocketAddr>, RefusedAddress> {
        let first = found.first().map(SocketAddr::ip);
        let may = |address: &SocketAddr| scopes.contains(&scope(address.ip()));
        let admitted: Vec<_> = found.into_iter().filter(may).collect();
        match first {
            Some(_) if admitted.is_empty() => Err(RefusedAddress { host: host.to_owned(), address: first }),
            _ => Ok(admitted),
        }
    }
}

/// Resolves the names of other hosts.
pub(super) struct GuardedResolver(pub(super) Arc<Guard>);

impl Resolve for GuardedResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let guard = self.0.clone();
        Box::pin(async move {
            let host = name.as_str();
            let found: Vec<SocketAddr> = tokio::net::lookup_host((host, 0)).await?.collect();
            let named = guard.named.lock().unwrap_or_else(PoisonError::into_inner).contains(host);
            let usable = if named { Guard::admit(host, found, &guard.scopes().await)? } else { found };
            Ok(Box::new(usable.into_iter()) as Addrs)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guard(registry: &str) -> Arc<Guard> {
        Guard::of(registry.parse().unwrap(), InternalRedirects::OfRegistry).unwrap()
    }

    #[tokio::test]
    async fn a_registry_may_name_only_addresses_of_its_own_scope() {
        for (registry, other, admitted) in [
            ("https://8.8.8.8/", "https://1.1.1.1/", true),
            ("https://8.8.8.8/", "http://127.0.0.1:4646/v1/agent", false),
            ("https://8.8.8.8/", "https://localhost/", false),
            ("https://8.8.8.8/", "http://169.254.169.254/latest", false),
            ("https://8.8.8.8/", "https://10.0.0.1/", false),
            ("https://8.8.8.8/", "https://[::1]/", false),
            ("https://8.8.8.8/", "https://[::ffff:127.0.0.1]/", false),
            ("https://8.8.8.8/", "https://[fd00::1]/", false),
            ("https://8.8.8.8/", "https://0x7f.1/", false),
            ("https://10.0.0.1/", "https://192.168.0.1/", true),
            ("https://10.0.0.1/", "https://127.0.0.1/", false),
            ("https://10.0.0.1/", "https://169.254.169.254/", false),
            ("http://localhost:5000/", "http://127.0.0.1:9000/", true),
            ("http://localhost:5000/", "http://10.0.0.1:9000/", true),
            ("http://127.0.0.1:5000/", "http://169.254.169.254/", false),
            ("http://169.254.1.1/", "http://169.254.169.254/", false),
        ] {
            let checked = guard(registry).check(&other.parse().unwrap()).await;
            assert_eq!(checked.is_ok(), admitted, "{registry} {other}");
        }
    }

    #[tokio::test]
    async fn link_local_addresses_are_refused_unless_all_are_admitted() {
        let registry = || "https://8.8.8.8/".parse().unwrap();
        let guard = Guard::of(registry(), InternalRedirects::ExceptLinkLocal).unwrap();
        for (other, admitted) in [
            ("https://1.1.1.1/", true),
            ("https://10.0.0.1/", true),
            ("https://[fd00::1]/", true),
            ("http://127.0.0.1:9000/", true),
            ("http://169.254.169.254/latest", false),
            ("http://[fe80::1]/", false),
        ] {
            assert_eq!(guard.check(&other.parse().unwrap()).await.is_ok(), admitted, "{other}");
        }
        assert!(Guard::of(registry(), InternalRedirects::All).is_none());
    }

    #[tokio::test]
    async fn a_name_is_checked_by_its_addresses() {
        let resolve = async |guard: &Arc<Guard>| {
            let found = GuardedResolver(guard.clone()).resolve("localhost".parse().unwrap()).await;
            found.map(Iterator::count).map_err(|error| error.to_string())
        };
        let outside = guard("https://8.8.8.8/");
        assert!(resolve(&outside).await.unwrap() > 0, "a proxy may be on this machine");
        // `localhost` stands for a name in the DNS: `check` would refuse it by its text.
        outside.named.lock().unwrap().insert("localhost".to_owned());
        assert!(resolve(&outside).await.unwrap_err().contains(REFUSED));
        let inside = guard("http://127.0.0.1:5000/");
        inside.named.lock().unwrap().insert("localhost".to_owned());
        assert!(resolve(&inside).await.unwrap() > 0);
    }

    #[test]
    fn addresses_of_a_name_are_admitted_one_by_one() {
        let at = |address: &str| SocketAddr::new(address.parse().unwrap(), 0);
        let own = BTreeSet::from([Scope::Global]);
        let found = vec![at("127.0.0.1"), at("1.1.1.1"), at("10.0.0.1")];
        assert_eq!(Guard::admit("x", found, &own), Ok(vec![at("1.1.1.1")]));
        let refused = Guard::admit("x", vec![at("10.0.0.1")], &own).unwrap_err();
        assert_eq!(refused.address, Some("10.0.0.1".parse().unwrap()));
        assert_eq!(
            Guard::admit("x", vec![at("10.0.0.1")], &BTreeSet::from([Scope::Global, Scope::Private])),
            Ok(vec![at("10.0.0.1")])
        );
        assert_eq!(Guard::admit("x", Vec::new(), &own), Ok(Vec::new()), "the client reports that itself");
    }
}
