//! Filters of tasks by a property, as in `job=web*`.

use crate::config::any_matches;

/// The properties that a filter can name.
const PROPERTIES: [&str; 8] = ["plugin", "namespace", "job", "group", "task", "alloc", "image", "state"];

/// A filter: a property and a pattern, in which `*` is any text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filter {
    property: &'static str,
    pattern: String,
}

impl Filter {
    /// Parses `property=pattern`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (name, pattern) = text.split_once('=').ok_or("is not of the form NAME=VALUE")?;
        // Docker's names.
        let name = match name {
            "status" => "state",
            "ancestor" => "image",
            "allocation" => "alloc",
            name => name,
        };
        let property = PROPERTIES.into_iter().find(|property| *property == name);
        let property = property.ok_or_else(|| format!("knows only the names {}", PROPERTIES.join(", ")))?;
        Ok(Self { property, pattern: pattern.to_owned() })
    }

    /// Whether it is a filter of this property.
    pub fn is_of(&self, property: &str) -> bool {
        self.property == property
    }

    /// Whether a task with these properties passes all filters. Of several filters of one property, one must match.
    pub fn accepts(filters: &[Self], property: impl Fn(&str) -> String) -> bool {
        filters.iter().all(|filter| {
            let same = filters.iter().filter(|other| other.property == filter.property);
            let patterns: Vec<String> = same.map(|filter| filter.pattern.clone()).collect();
            let value = property(filter.property);
            // The beginning of an allocation's id names the allocation.
            let begins = filter.property == "alloc" && patterns.iter().any(|begin| value.starts_with(begin.as_str()));
            begins || any_matches(&patterns, &value)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Filter;

    #[test]
    fn one_filter_of_each_property_must_match() {
        let accepts = |filters: &[&str]| {
            let filters: Vec<Filter> = filters.iter().map(|text| Filter::parse(text).unwrap()).collect();
            Filter::accepts(&filters, |property| match property {
                "job" => "web".to_owned(),
                "alloc" => "0123abcd-1111".to_owned(),
                _ => "running".to_owned(),
            })
        };
        for (filters, expected) in [
            (&[][..], true),
            (&["job=web"], true),
            (&["job=w*"], true),
            (&["job=api"], false),
            (&["job=api", "job=web"], true),
            (&["job=web", "status=exited"], false),
            (&["alloc=0123"], true),
            (&["alloc=1111"], false),
            (&["job="], false),
        ] {
            assert_eq!(accepts(filters), expected, "{filters:?}");
        }
        for wrong in ["job", "colour=red", "=x"] {
            assert!(Filter::parse(wrong).is_err(), "{wrong}");
        }
    }
}
