//! Properties of decoding: any bytes are answered, and `data` comes through byte for byte.

use proptest::prelude::*;

use super::cloudevents::CE;
use super::*;

fn any_json() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        Just("null".to_owned()),
        Just("-0.10e+5".to_owned()),
        Just("1e999".to_owned()),
        Just("\"\\ud800 \\u0000 \\\"\"".to_owned()),
        any::<String>().prop_map(|text| Value::from(text).to_string()),
        any::<i128>().prop_map(|number| number.to_string()),
    ];
    let space = "[ \n\t\r]{0,2}";
    leaf.prop_recursive(6, 32, 4, move |inner| {
        let spaced = (space, inner, space).prop_map(|(left, value, right)| format!("{left}{value}{right}"));
        prop_oneof![
            proptest::collection::vec(spaced.clone(), 0..4)
                .prop_map(|items| format!("[{}]", items.join(","))),
            proptest::collection::vec((any::<String>(), spaced), 0..4).prop_map(|members| {
                let members: Vec<_> = members
                    .iter()
                    .map(|(name, value)| format!("{}:{value}", Value::from(name.as_str())))
                    .collect();
                format!("{{{}}}", members.join(","))
            }),
        ]
    })
}

proptest! {
    #[test]
    fn data_comes_through_byte_for_byte(data in any_json(), id in "[^\\p{C}]{1,20}", pad in "[ \n]{0,3}") {
        let id = Value::from(id).to_string();
        let body = format!("{pad}{{\"id\":{id},{pad}\"source\":\"s\",\"type\":\"t\",\"data\":{data}}}");
        let expected = format!("\"data\":{data}}}");
        for (content_type, body) in [(JSON, body.clone()), (JSON, format!("[{body}]"))] {
            let units = send(content_type, &[], body).unwrap();
            let sent = std::str::from_utf8(&units[0].events[0].body).unwrap();
            prop_assert!(sent.ends_with(&expected), "{}", sent);
        }
        let headers: Vec<_> = CE.to_vec();
        let units = send(JSON, &headers, data.clone()).unwrap();
        prop_assert!(std::str::from_utf8(&units[0].events[0].body).unwrap().ends_with(&expected));
    }

    #[test]
    fn minified_data_is_the_same_event(data in any_json()) {
        let body = |data: &str| format!("{{\"id\":\"1\",\"source\":\"s\",\"type\":\"t\",\"data\":{data}}}");
        let small = String::from_utf8(crate::json::minify(data.as_bytes())).unwrap();
        prop_assert_eq!(prints(&body(&data)), prints(&body(&small)));
    }

    #[test]
    fn any_bytes_are_answered(
        body in proptest::collection::vec(any::<u8>(), 0..200),
        mode in 0..6usize,
        header in proptest::collection::vec(any::<u8>(), 0..20),
    ) {
        let types = [None, JSON, NDJSON, STRUCTURED, BATCH, Some("text/plain")];
        let headers: [(&str, &[u8]); 2] = [("ce-specversion", b"1.0"), ("ce-id", &header)];
        let _ = send(types[mode], &[], body.clone());
        let _ = send(types[mode], &headers, body);
    }

    #[test]
    fn any_fields_are_answered(members in proptest::collection::vec(
        (proptest::sample::select(vec![
            "id", "source", "type", "subject", "time", "ended", "data", "data_base64", "parents", "extensions",
            "events", "specversion", "datacontenttype", "other",
        ]), any_json()), 0..6)) {
        let members: Vec<_> = members.iter().map(|(name, value)| format!("\"{name}\":{value}")).collect();
        let body = format!("{{{}}}", members.join(","));
        for content_type in [JSON, NDJSON, STRUCTURED] {
            if let Ok(units) = send(content_type, &[], body.clone()) {
                for event in units.iter().flat_map(|unit| &unit.events) {
                    serde_json::from_slice::<serde::de::IgnoredAny>(&event.body).unwrap();
                }
            }
        }
    }
}
