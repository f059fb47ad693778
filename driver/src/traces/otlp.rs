//! The encoding of traces: the request `ExportTraceServiceRequest` of OTLP 1.x as JSON.
//!
//! Ids are hexadecimal, and times are nanoseconds as text, as the specification of OTLP over HTTP says.

use serde_json::{Value, json};

use super::span::{Attribute, Span, Trace, unix_nanos};

/// The kind of a span that is neither a request nor an answer (`SPAN_KIND_INTERNAL`).
const INTERNAL: u32 = 1;
/// The status of a span that failed (`STATUS_CODE_ERROR`).
const ERROR: u32 = 2;

/// The body of a request.
pub fn encode(resource: &[Attribute], traces: &[Trace]) -> Vec<u8> {
    let spans: Vec<Value> = traces.iter().flat_map(spans).collect();
    let scope = json!({"name": "oci-rs", "version": env!("CARGO_PKG_VERSION")});
    let body = json!({"resourceSpans": [{
        "resource": {"attributes": attributes(resource)},
        "scopeSpans": [{"scope": scope, "spans": spans}],
    }]});
    body.to_string().into_bytes()
}

fn spans(trace: &Trace) -> impl Iterator<Item = Value> {
    trace.spans.iter().enumerate().map(|(index, span)| one(trace, index, span))
}

fn one(trace: &Trace, index: usize, span: &Span) -> Value {
    let began = unix_nanos(span.began);
    let mut value = json!({
        "traceId": format!("{:032x}", trace.id),
        "spanId": format!("{:016x}", trace.span_id(index)),
        "name": span.name,
        "kind": INTERNAL,
        "startTimeUnixNano": began.to_string(),
        "endTimeUnixNano": (began + span.elapsed.as_nanos()).to_string(),
        "attributes": attributes(&span.attributes),
    });
    if let Some(parent) = span.parent {
        value["parentSpanId"] = format!("{:016x}", trace.span_id(parent)).into();
    }
    if let Some(error) = &span.error {
        value["status"] = json!({"code": ERROR, "message": error});
    }
    value
}

fn attributes(attributes: &[Attribute]) -> Vec<Value> {
    attributes.iter().map(|(key, value)| json!({"key": key, "value": {"stringValue": value}})).collect()
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    #[test]
    fn a_trace_has_the_form_of_the_specification() {
        let span = |name, parent, error: Option<&str>| Span {
            name,
            parent,
            began: UNIX_EPOCH + Duration::from_nanos(1_700_000_000_000_000_007),
            elapsed: Duration::from_millis(2),
            attributes: vec![("nomad.alloc.id", "a".to_owned())],
            error: error.map(str::to_owned),
        };
        let trace = Trace { id: 0xabc, spans: vec![span("start", None, Some("no")), span("image", Some(0), None)] };
        let body: Value = serde_json::from_slice(&encode(&[("service.name", "oci-rs".to_owned())], &[trace])).unwrap();
        let resource = &body["resourceSpans"][0];
        assert_eq!(resource["resource"]["attributes"][0]["value"]["stringValue"], "oci-rs");
        let spans = &resource["scopeSpans"][0]["spans"];
        let (first, second) = (&spans[0], &spans[1]);
        assert_eq!(first["traceId"], "00000000000000000000000000000abc");
        assert_eq!(first["spanId"].as_str().map(str::len), Some(16));
        assert_eq!(first["parentSpanId"], Value::Null);
        assert_eq!(second["parentSpanId"], first["spanId"]);
        assert_eq!(first["startTimeUnixNano"], "1700000000000000007");
        assert_eq!(first["endTimeUnixNano"], "1700000000002000007");
        assert_eq!(first["status"], json!({"code": 2, "message": "no"}));
        assert_eq!(second["attributes"], json!([{"key": "nomad.alloc.id", "value": {"stringValue": "a"}}]));
    }
}
