//! Goal: a schema means what the standard says, and nothing it says can take long. Method: a table of schemas with
//! values on both sides of each; bombs that would hang a validator without a budget.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::{Flaw, Schema};
use crate::limits::{SCHEMA_IN_PLACE_MAX, SCHEMA_REGEXES_MAX};

fn compiled(schema: &Value) -> Schema {
    Schema::compile(schema).unwrap_or_else(|flaw| panic!("{schema}: {flaw:?}"))
}

fn check(schema: &Value, value: &Value) -> Result<(), String> {
    compiled(schema).check(value, value.to_string().len())
}

#[track_caller]
fn judged(schema: &Value, good: &[Value], bad: &[Value]) {
    for value in good {
        assert_eq!(check(schema, value), Ok(()), "{schema} {value}");
    }
    for value in bad {
        assert!(check(schema, value).is_err(), "{schema} {value}");
    }
}

#[track_caller]
fn flaw(schema: &Value) -> Flaw {
    Schema::compile(schema).expect_err("it is refused")
}

#[test]
fn values_are_judged_as_the_standard_says() {
    judged(&json!(true), &[json!(1)], &[]);
    judged(&json!(false), &[], &[json!(1), json!(null)]);
    judged(&json!({"type":"integer"}), &[json!(1), json!(1.0)], &[json!(1.5), json!("1"), json!(null)]);
    judged(&json!({"type":["string","null"]}), &[json!(null), json!("")], &[json!(false)]);
    judged(&json!({"const":{"a":[1]}}), &[json!({"a":[1.0]})], &[json!({"a":[true]}), json!({})]);
    judged(&json!({"enum":[1,"a",null]}), &[json!(1.0), json!("a")], &[json!(2), json!(false)]);
    judged(&json!({"minimum":1,"exclusiveMaximum":2}), &[json!(1), json!(1.9)], &[json!(0.9), json!(2)]);
    judged(&json!({"multipleOf":0.01}), &[json!(0.07), json!(19.99), json!(3)], &[json!(0.075)]);
    judged(&json!({"multipleOf":0.123_456_789}), &[json!(0)], &[json!(1e308)]);
    judged(&json!({"minimum":9_007_199_254_740_993_u64}), &[], &[json!(9_007_199_254_740_992_u64)]);
    judged(&json!({"minLength":2,"maxLength":2}), &[json!("éé"), json!(7)], &[json!("é"), json!("ééé")]);
}

#[test]
fn lists_and_objects_are_judged_as_the_standard_says() {
    judged(
        &json!({"uniqueItems":true}),
        &[json!([1, "1", true])],
        &[json!([1, 1.0]), json!([{"a":1},{"a":1}])],
    );
    let tuple = json!({"prefixItems":[{"type":"string"}],"items":{"type":"integer"},"maxItems":3});
    judged(&tuple, &[json!(["a", 1, 2]), json!([])], &[json!([1]), json!(["a", "b"]), json!(["a", 1, 2, 3])]);
    let contains = json!({"contains":{"const":1},"minContains":1,"maxContains":2});
    judged(&contains, &[json!([1, 2, 1])], &[json!([2]), json!([1, 1, 1])]);
    let object = json!({"required":["a"],"properties":{"a":{"type":"string"}},"patternProperties":{"^x-":{}},
        "additionalProperties":false,"dependentRequired":{"x-a":["x-b"]},"propertyNames":{"maxLength":3}});
    judged(
        &object,
        &[json!({"a":"b"}), json!({"a":"b","x-a":1,"x-b":2})],
        &[
            json!({}),
            json!({"a":1}),
            json!({"a":"b","c":1}),
            json!({"a":"b","x-a":1}),
            json!({"a":"b","x-ab":1}),
        ],
    );
    let either = json!({"if":{"properties":{"k":{"const":1}},"required":["k"]},"then":{"required":["a"]},"else":{"required":["b"]}});
    judged(&either, &[json!({"k":1,"a":0}), json!({"b":0})], &[json!({"k":1,"b":0}), json!({"a":0})]);
    let one = json!({"oneOf":[{"type":"integer"},{"minimum":2}],"not":{"const":7.5}});
    judged(&one, &[json!(1), json!(2.5)], &[json!(3), json!(1.5), json!(7.5)]);
    let rest = json!({"allOf":[{"properties":{"a":true}}],"anyOf":[{"properties":{"b":{"const":1}}},true],"unevaluatedProperties":false});
    judged(&rest, &[json!({"a":1,"b":1})], &[json!({"a":1,"b":2}), json!({"c":1})]);
    let rest = json!({"prefixItems":[true],"contains":{"const":9},"unevaluatedItems":{"type":"string"}});
    judged(&rest, &[json!([0, 9, "a"])], &[json!([0, 9, 1])]);
}

#[test]
fn references_stay_inside() {
    let tree = json!({"$id":"https://example.com/tree","properties":{"children":{"items":{"$ref":"#"}},
        "size":{"$ref":"https://example.com/tree#/$defs/a~1b"},"colour":{"$ref":"#colour"}},
        "$defs":{"a/b":{"type":"integer"},"c":{"$anchor":"colour","enum":["red"]}}});
    judged(
        &tree,
        &[json!({"children":[{"size":1,"children":[]}],"colour":"red"})],
        &[json!({"children":[{"children":[{"size":"x"}]}]}), json!({"colour":"blue"})],
    );
    for (reference, words) in [
        ("https://example.com/other.json", "outside"),
        ("other.json#/a", "outside"),
        ("file:///etc/passwd", "outside"),
        ("#/$defs/none", "nothing at"),
        ("#nowhere", "nothing at"),
    ] {
        let found = flaw(&json!({"properties":{"a":{"$ref":reference}}}));
        assert_eq!(found.path, "/properties/a/$ref");
        assert!(found.detail.contains(words), "{reference}: {}", found.detail);
    }
}

#[test]
fn what_would_be_misread_is_refused_with_its_place() {
    for (schema, path) in [
        (json!([]), ""),
        (json!({"$schema":"http://json-schema.org/draft-07/schema#"}), "/$schema"),
        (json!({"properties":{"a":{"type":"text"}}}), "/properties/a/type"),
        (json!({"items":[{}]}), "/items"),
        (json!({"dependencies":{}}), "/dependencies"),
        (json!({"allOf":[{"$dynamicRef":"#a"}]}), "/allOf/0/$dynamicRef"),
        (json!({"$defs":{"a":{"$id":"b"}}}), "/$defs/a/$id"),
        (json!({"multipleOf":0}), "/multipleOf"),
        (json!({"minLength":-1}), "/minLength"),
        (json!({"minLength":1.5}), "/minLength"),
        (json!({"required":"a"}), "/required"),
        (json!({"anyOf":[]}), "/anyOf"),
        (json!({"pattern":"(?=a)"}), "/pattern"),
        (json!({"pattern":"(a)\\1"}), "/pattern"),
        (json!({"properties":{"a":1}}), "/properties/a"),
    ] {
        assert_eq!(flaw(&schema).path, path, "{schema}");
    }
}

#[test]
fn patterns_mean_what_they_mean_in_schemas() {
    for (pattern, good, bad) in [
        ("^\\d{3}$", "123", "१२३"),
        ("^[\\w.-]+@\\w+$", "a.b-c@d", "é@d"),
        ("^[[]a&&b]$", "[a&&b]", "a"),
        ("a", "bab", "b"),
        ("^\\/\\u0041$", "/A", "/B"),
        ("^[^\\d]$", "x", "1"),
    ] {
        judged(&json!({ "pattern": pattern }), &[json!(good)], &[json!(bad)]);
    }
}

#[test]
fn a_finding_says_where_and_what_and_repeats_little() {
    let schema = json!({"properties":{"lines":{"items":{"properties":{"price":{"type":"number"}}}}}});
    let found = check(&schema, &json!({"lines":[{},{"price":"12"}]})).unwrap_err();
    assert_eq!(found, "data.lines[1].price: expected number, found string \"12\"");
    let long = "x".repeat(10_000);
    for value in [json!({"lines":[{"price": long}]}), json!({ "lines": { (long.as_str()): 1 } })] {
        let schema = json!({"properties":{"lines":{"additionalProperties":false,"items":{"properties":{"price":{"type":"number"}}}}}});
        let found = check(&schema, &value).unwrap_err();
        assert!(!found.contains(&"x".repeat(100)) && found.len() < 500, "{found}");
    }
}

/// `{"a":{"a":{…}}}`.
fn nested(depth: usize) -> Value {
    (0..depth).fold(json!({}), |inner, _| json!({ "a": inner }))
}

#[test]
fn bombs_are_refused_or_end_soon() {
    assert!(flaw(&json!({"$ref":"#"})).detail.contains("never end"));
    assert!(flaw(&json!({"allOf":[{"$ref":"#"},{"$ref":"#"}]})).detail.contains("never end"));
    let chain = |length: usize| {
        let mut definitions = serde_json::Map::new();
        for n in 0..length {
            let next = json!({ "$ref": format!("#/$defs/{}", n + 1) });
            definitions.insert(n.to_string(), json!({ "allOf": [next.clone(), next] }));
        }
        definitions.insert(length.to_string(), json!({"type":"integer"}));
        json!({ "$defs": definitions, "$ref": "#/$defs/0" })
    };
    assert!(flaw(&chain(SCHEMA_IN_PLACE_MAX)).detail.contains("flatten"));
    assert!(flaw(&chain(10_000)).detail.contains("flatten"));
    // Two to the fifteenth, and two to the sixtieth, by a few bytes each.
    let wide = check(&chain(15), &json!(1)).unwrap_err();
    assert!(wide.contains("steps"), "{wide}");
    let doubling = json!({"properties":{"a":{"allOf":[{"$ref":"#"},{"$ref":"#"}]}}});
    assert!(check(&doubling, &nested(60)).unwrap_err().contains("steps"));
    let deep = json!({"additionalProperties":{"allOf":[{"allOf":[{"allOf":[{"allOf":[{"$ref":"#"}]}]}]}]}});
    assert!(check(&deep, &nested(64)).unwrap_err().contains("levels"));
    let many: Vec<Value> = (0..5_000).map(|n| json!(n.to_string())).collect();
    assert_eq!(check(&json!({"enum":many}), &json!("4999")), Ok(()));
    let costly = json!({"items":{"enum": (0..5_000).map(|n| json!([n])).collect::<Vec<_>>()}});
    assert!(check(&costly, &json!(vec![[4_999]; 2_000])).unwrap_err().contains("steps"));
    let slow = json!({"pattern":"^(a+)+$"});
    let text = "a".repeat(100_000) + "b";
    assert!(check(&slow, &json!(text)).is_err());
    assert!(flaw(&json!({"pattern":"(a{1,1000}){1,1000}"})).detail.contains("simplify"));
    let patterns: serde_json::Map<_, _> =
        (0..=SCHEMA_REGEXES_MAX).map(|n| (format!("^{n}$"), json!(true))).collect();
    assert!(flaw(&json!({ "patternProperties": patterns })).detail.contains("different patterns"));
}

#[test]
fn an_ordinary_large_event_is_within_its_steps() {
    let item = json!({"type":"object","required":["sku","count","price"],"additionalProperties":false,"properties":{
        "sku":{"type":"string","pattern":"^[A-Z]{3}-\\d+$"},"count":{"type":"integer","minimum":1},"price":{"type":"number"}}});
    let schema = json!({"properties":{"lines":{"type":"array","items":item,"uniqueItems":true}}});
    let line = |n: usize| json!({ "sku": format!("ABC-{n}"), "count": n + 1, "price": 9.5 });
    let value = json!({ "lines": (0..20_000).map(line).collect::<Vec<_>>() });
    assert_eq!(check(&schema, &value), Ok(()));
}

fn any_json() -> impl Strategy<Value = Value> {
    let words = prop::sample::select(vec![
        "type",
        "properties",
        "items",
        "allOf",
        "anyOf",
        "oneOf",
        "not",
        "$ref",
        "$defs",
        "enum",
        "const",
        "if",
        "then",
        "else",
        "contains",
        "required",
        "pattern",
        "unevaluatedProperties",
        "prefixItems",
        "minLength",
        "maximum",
        "multipleOf",
        "uniqueItems",
        "additionalProperties",
        "dependentSchemas",
        "a",
    ]);
    let texts =
        prop::sample::select(vec!["string", "object", "array", "#", "#/$defs/a", "#/items", "a", "^a+$"]);
    let leaf = prop_oneof![
        Just(json!(null)),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        any::<f32>().prop_map(|float| json!(float)),
        texts.prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 40, 5, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(words.clone().prop_map(str::to_owned), inner, 0..5)
                .prop_map(|members| json!(members)),
        ]
    })
}

proptest! {
    #[test]
    fn any_schema_is_refused_or_judges_anything_the_same_way_twice(schema in any_json(), value in any_json()) {
        if let Ok(compiled) = Schema::compile(&schema) {
            prop_assert_eq!(compiled.check(&value, 100), compiled.check(&value, 100));
        }
    }
}
