//! Tests of conditions, lanes, judgements and the routing table.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::event::Event;
use crate::limits;
use crate::subscriber::Definition;
use crate::time::Timestamp;

fn event(type_name: &str, members: &str) -> Event {
    let body = format!(
        "{{\"id\":\"e1\",\"source\":\"shop\",\"type\":\"{type_name}\",\"time\":\"2026-01-01T00:00:00Z\"{members}}}"
    );
    Event {
        id: "e1".to_owned(),
        source: "shop".to_owned(),
        type_name: type_name.to_owned(),
        subject: None,
        time: Timestamp::from_ms(0),
        body: Bytes::from(body),
    }
}

fn with_data(data: &str) -> Event {
    event("order.paid", &format!(",\"data\":{data}"))
}

#[track_caller]
fn judge(source: &str, data: &str) -> Result<bool, String> {
    let condition = Condition::compile(source).unwrap_or_else(|problem| panic!("{source}: {problem}"));
    let event = with_data(data);
    condition.judge(&View::new(&event))
}

fn subscriber(no: i64, definition: &str) -> Subscriber {
    let definition: Definition = serde_json::from_str(definition).unwrap();
    Subscriber::compile(no, 1, format!("sub_{no}"), definition).unwrap()
}

fn wanting(no: i64, matching: &str, order: &str) -> Subscriber {
    let destination = "{\"kind\":\"webhook\",\"url\":\"https://example.com\"}";
    subscriber(no, &format!("{{\"destination\":{destination},\"match\":{matching},\"order\":{order}}}"))
}

#[test]
fn conditions_see_every_attribute() {
    let mut event = event(
        "order.paid",
        ",\"ended\":\"2026-01-01T00:00:01Z\",\"parents\":[\"p1\",\"p2\"],\"extensions\":{\"tenant\":\"x\"},\"data\":[1]",
    );
    event.subject = Some("o/1".to_owned());
    let view = View::new(&event);
    for source in [
        "id == 'e1' && source == 'shop' && type == 'order.paid' && subject == 'o/1'",
        "time == '2026-01-01T00:00:00Z' && ended > time",
        "'p2' in parents && size(parents) == 2",
        "extensions.tenant == 'x' && has(extensions.tenant) && !has(extensions.other)",
        "data == [1] && [1.0] == data && data[0] == 1 && data[0.0] == 1",
        "type.startsWith('order.') && subject.matches('^o/[0-9]+$') && matches(subject, 'o')",
        "type(data) == list && type(id) == string",
        "!type.matches('^[\\\\w.+-]+@[\\\\w-]+(\\\\.\\\\w+)+$') && !time.matches('(?i)^[a-z]{3}-\\\\d+$')",
    ] {
        assert_eq!(Condition::compile(source).unwrap().judge(&view), Ok(true), "{source}");
    }
}

#[test]
fn absent_attributes_are_null_or_empty() {
    for source in ["subject == null && ended == null", "parents == [] && extensions == {}", "data == null"] {
        assert_eq!(judge(source, "null"), Ok(true), "{source}");
    }
    let plain = event("a", "");
    assert_eq!(Condition::compile("data == null").unwrap().judge(&View::new(&plain)), Ok(true));
}

#[test]
fn numbers_compare_by_value() {
    for (source, data) in [
        ("data.t == 1 && data.t == 1.0 && data.t == 1u", "{\"t\":1}"),
        ("data.t == 1 && data.t == 1.0 && data.t == 1u", "{\"t\":1.0}"),
        ("data.t > 10 && data.t > 10.5 && data.t < 12u", "{\"t\":11}"),
        ("data.t > 10 && data.t > 10.5 && data.t < 12u", "{\"t\":11.5}"),
        ("data.t < 0 && data.t < 0.5 && data.t < 1u", "{\"t\":-3}"),
        ("data.t > 10 && data.t > 10.5 && data.t == 18446744073709551615u", "{\"t\":18446744073709551615}"),
        ("data.t < 10 && data.t < 10.5", "{\"t\":-9223372036854775808}"),
        ("data.t > 10 && data.t > 10.5", "{\"t\":1e300}"),
        ("data.t > 10 && data.t > 10.5", "{\"t\":123456789012345678901234567890}"),
        ("data.t in [1, 2] && 2.0 in data.u && data.u == [1, 2]", "{\"t\":1.0,\"u\":[1.0,2]}"),
        ("10 < data.t && 10.5 < data.t", "{\"t\":11}"),
        ("data.t == 675621566002.701", "{\"t\":675621566002.70100}"),
    ] {
        assert_eq!(judge(source, data), Ok(true), "{source} on {data}");
    }
}

#[test]
fn objects_and_lists_compare_whichever_side_they_stand_on() {
    let data = "{\"o\":{\"a\":[1,{\"b\":null}]},\"l\":[\"x\",\"y\"]}";
    for source in [
        "data.o == {'a': [1, {'b': null}]}",
        "{'a': [1, {'b': null}]} == data.o",
        "data.o in [data.o] && data.o in [{'a': [1, {'b': null}]}]",
        "data.l + ['z'] == ['x', 'y', 'z'] && ['w'] + data.l == ['w', 'x', 'y']",
        "data.l.map(x, x + '!') == ['x!', 'y!'] && data.l.filter(x, x == 'y') == ['y']",
        "data.l.exists(x, x == 'y') && data.l.all(x, x in data.l) && data.l.exists_one(x, x == 'x')",
        "data.all(k, k in ['l', 'o']) && size(data) == 2 && data.l.size() == 2 && 'o' in data",
        "data['o']['a'][1]['b'] == null && data.map(k, k) == ['o', 'l']",
        "data.l.all(x, data.o.a.exists(y, y == 1))",
    ] {
        assert_eq!(judge(source, data), Ok(true), "{source}");
    }
    assert_eq!(judge("data.o == {'a': 1} || [] == data.l || data.l == data.o", data), Ok(false));
}

#[test]
fn errors_are_reasons() {
    for (source, data, expected) in [
        ("data.x == 1", "{}", "no such key: x"),
        ("data.x.y == 1", "{\"x\":{}}", "no such key: y"),
        ("data.x", "{\"x\":\"yes\"}", "it is neither true nor false, but of type string"),
        ("data > 1", "{}", "found no matching overload for '_>_' applied to '(map, int)'"),
        ("data[9] == 1", "[1]", "index out of bounds"),
        ("data + 1 == 2", "\"secret\"", "cannot add string and int"),
        ("data + data == data", "{}", "cannot add map and map"),
        ("data[null] == 1", "[1]", "found no matching overload for '_[_]' applied to '(list, null_type)'"),
        ("data[0.5] == 1", "[\"secret\"]", "cannot index list with float"),
        ("1 / data == 1", "0", "division by zero"),
        ("data == 1", "1e999", "data cannot be read: number out of range"),
        ("data == 'x'", "\"\\ud800\"", "data cannot be read:"),
    ] {
        let reason = judge(source, data).unwrap_err();
        assert!(reason.starts_with(expected), "{source}: {reason}");
    }
    assert_eq!(judge("type == 'order.paid'", "1e999"), Ok(true));
    let long = format!("{{\"a\":\"{}\"}}", "x".repeat(10_000));
    assert!(judge("data[data.a] == 2", &long).unwrap_err().chars().count() <= 201);
}

#[test]
fn conditions_that_cannot_work_are_refused_with_their_place() {
    let five = ["data.matches('x')"; 5].join(" && ");
    for (source, line, column, detail) in [
        ("dta.x == 1", 1, 1, "unknown variable `dta`"),
        ("data.x == 1 &&\n  foo", 2, 3, "unknown variable `foo`"),
        ("data.l.all(x, y == 1)", 1, 15, "unknown variable `y`"),
        ("'ä' == data && lower(data)", 1, 21, "unknown function `lower`"),
        ("data ==", 1, 8, ""),
        ("", 1, 1, ""),
        ("data.a.?b == 1", 1, 7, ""),
        ("data.matches('(')", 1, 13, "the pattern of `matches` is not a regular expression: unclosed group"),
        ("data.matches(data)", 1, 13, "the pattern of `matches` must be a literal"),
        ("matches('x')", 1, 8, "`matches` takes a text and a pattern"),
        ("data.matches('\\\\w{100}')", 1, 13, "the pattern of `matches` is too large"),
        (&five, 1, 97, "at most 4 `matches`"),
        ("Foo{a: 1} == data", 1, 4, "messages are not supported"),
        ("@regex0 == data", 1, 1, ""),
    ] {
        let problem = Condition::compile(source).unwrap_err();
        assert!(problem.detail.starts_with(detail), "{source}: {problem}");
        assert_eq!((problem.line, problem.column), (line, column), "{source}: {problem}");
    }
}

#[test]
fn conditions_stay_small_and_shallow() {
    let nested = |n: usize| format!("{}1{} == 1", "(".repeat(n), ")".repeat(n));
    let chain = |n: usize| format!("data == 1{}", " + 1".repeat(n));
    let macros = "data.all(a, data.all(b, a == b))";
    Condition::compile(&nested(limits::WHERE_DEPTH_MAX)).unwrap();
    Condition::compile(&chain(limits::WHERE_TREE_DEPTH_MAX - 2)).unwrap();
    Condition::compile(macros).unwrap();
    for bad in [
        nested(limits::WHERE_DEPTH_MAX + 1),
        nested(400),
        chain(limits::WHERE_TREE_DEPTH_MAX - 1),
        format!("{}true", "!".repeat(100)),
        format!("{}1 == 1", "- ".repeat(100)),
        format!("{}true", "true ? true : ".repeat(30)),
        format!("data{} == 1", ".a".repeat(30)),
        format!("data.all(c, {macros})"),
        format!("'{}' == data", "x".repeat(limits::WHERE_BYTES_MAX)),
    ] {
        Condition::compile(&bad).unwrap_err();
    }
    let many = vec!["data == 1"; 70].join("||");
    Condition::compile(&many).unwrap();
}

#[test]
fn evaluation_fits_on_a_small_stack() {
    let deepest = format!("1{} == data", " + 1".repeat(limits::WHERE_TREE_DEPTH_MAX - 2));
    let calls = format!("{}data{} == 1", "dyn(".repeat(22), ")".repeat(22));
    for source in [deepest, calls] {
        let condition = Condition::compile(&source).unwrap();
        let judged = std::thread::Builder::new().stack_size(1024 * 1024).spawn(move || {
            let event = with_data("1");
            condition.judge(&View::new(&event))
        });
        judged.unwrap().join().unwrap().unwrap();
    }
}

#[test]
fn evaluation_ends_soon_on_any_data() {
    let items = vec!["1"; 4_000].join(",");
    let texts = vec!["\"x\""; 4_000].join(",");
    let members: Vec<_> = (0..100).map(|n| format!("\"m{n}\":{n}")).collect();
    let object = members.join(",");
    let data =
        format!("{{\"l\":[{items}],\"t\":[{texts}],\"o\":{{{object}}},\"s\":\"{}\"}}", "a".repeat(980_000));
    let sum = format!("data.s{} == ''", " + data.s".repeat(21));
    for source in [
        &sum,
        "data.l.all(x, data.l.all(y, x == y))",
        "data.l.all(x, x in data.l)",
        "data.l.all(x, data.l == data.l)",
        "data.l.all(x, data.o == data.o)",
        "data.l.all(x, data.l + [1] != [])",
        "data.l.all(x, !data.s.contains('b'))",
        "!data.s.matches('b') && !data.s.matches('c')",
        "data.l.all(x, !data.s.matches('b'))",
        "data.l.all(x, [1, 2, 3, 4, 5].map(y, data.l) != [])",
        "data.t.all(x, data.t.map(y, y) != [])",
    ] {
        let reason = judge(source, &data).unwrap_err();
        assert!(reason.contains("more than 20000 steps"), "{source}: {reason}");
    }
    for source in ["data.l.all(x, x == 1) && data.t.all(t, t == 'x')", "!data.s.matches('b')"] {
        assert_eq!(judge(source, &data), Ok(true), "{source}");
    }
}

#[test]
fn a_condition_that_ran_out_of_steps_is_never_a_match() {
    // The inner `all` sees an empty list once the steps are gone, which alone would make it true.
    let data = format!("[{}]", vec!["1"; 2_000].join(","));
    assert!(judge("data.all(x, data.all(y, x == y))", &data).is_err());
    assert!(judge("data.all(x, data.all(y, x == y)) || true", &data).is_err());
}

#[test]
fn lanes_tell_values_apart_by_kind_and_worth() {
    let lane = |data: &str, path: &str| {
        let event = with_data(data);
        lane_of(&View::new(&event), &Path::parse(path).unwrap())
    };
    let of = |data: &str| lane(data, "data");
    assert_eq!(of("1"), of("1.0"));
    assert_eq!(of("-0.0"), of("-0"));
    assert_ne!(of("1"), of("\"1\""));
    assert_ne!(of("true"), of("\"true\""));
    assert_ne!(of("1.5"), of("1"));
    assert_eq!(of("{\"a\": [1, 2]}"), of("{\"a\":[1,2]}"));
    assert_eq!(of("null"), None);
    assert_eq!(lane("{\"a\":null}", "data.a"), None);
    assert_eq!(lane("{}", "data.a"), None);
    assert_eq!(lane("{\"a\":1}", "data.a.b"), None);
    assert_eq!(lane("{\"a\":[{\"b\":\"x\"}]}", "data.a.0.b"), of("\"x\""));
    assert_eq!(lane("1", "subject"), None);
    assert_eq!(lane("1", "type"), of("\"order.paid\""));
    // Lanes are stored: this value must never change.
    assert_eq!(of("\"x\""), Some(LANE_OF_X));
}

const LANE_OF_X: i64 = -5_058_662_749_162_700_475;

#[test]
fn paths_begin_at_an_attribute() {
    for good in ["subject", "source", "type", "data", "data.a", "data.a.b.0", "extensions.tenant"] {
        assert_eq!(Path::parse(good).unwrap().as_str(), good);
    }
    let long = format!("data.{}", "a".repeat(limits::PATH_BYTES_MAX));
    for bad in ["", "a", "id", "data.", "data..a", ".data", "extensions", "subject.a", "time", &long] {
        assert!(Path::parse(bad).is_err(), "{bad}");
    }
}

#[test]
fn judgements_say_why() {
    let ordered = "{\"by\":\"data.plan_id\"}";
    let matching = "{\"types\":[\"order.*\"],\"sources\":[\"shop\"],\"where\":\"data.total > 10\"}";
    let picky = wanting(1, matching, ordered);
    let elsewhere = wanting(2, "{\"sources\":[\"bank\"]}", "{}");
    let lenient = wanting(3, "{}", "{\"by\":\"data.plan_id\",\"missing\":\"unordered\"}");
    let one_lane = wanting(4, "{}", "{\"by\":\"subscriber\"}");
    let reason = |subscriber: &Subscriber, event: &Event| match subscriber.judge(&View::new(event)) {
        Judgement::Matched(route) => format!("matched {}", route.lane.is_some()),
        Judgement::Unmatched { reason } => format!("unmatched {reason}"),
        Judgement::Skipped { reason } => format!("skipped {reason}"),
    };
    let paid = |data: &str| with_data(data);
    for (subscriber, event, expected) in [
        (&picky, event("user.made", ""), "unmatched type user.made is not among match.types"),
        (&elsewhere, event("a", ""), "unmatched source shop is not among match.sources"),
        (&picky, paid("{\"total\":1}"), "unmatched where is false"),
        (&picky, paid("{}"), "unmatched where failed: no such key: total"),
        (&picky, paid("{\"total\":11}"), "skipped order.by data.plan_id is missing"),
        (&picky, paid("{\"total\":11,\"plan_id\":7}"), "matched true"),
        (&lenient, paid("{}"), "matched false"),
        (&lenient, paid("{\"plan_id\":7}"), "matched true"),
        (&one_lane, paid("{}"), "matched true"),
    ] {
        assert_eq!(reason(subscriber, &event), expected);
    }
}

fn any_json() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        Just("null".to_owned()),
        Just("true".to_owned()),
        Just("1e999".to_owned()),
        Just("\"\\udc00\"".to_owned()),
        any::<i64>().prop_map(|number| number.to_string()),
        any::<f32>().prop_filter("JSON", |number| number.is_finite()).prop_map(|number| number.to_string()),
        "[a-c]{0,2}".prop_map(|text| format!("\"{text}\"")),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(|items| format!("[{}]", items.join(","))),
            proptest::collection::vec(("[a-c]", inner), 0..4).prop_map(|members| {
                let members: Vec<_> =
                    members.iter().map(|(name, value)| format!("\"{name}\":{value}")).collect();
                format!("{{{}}}", members.join(","))
            }),
        ]
    })
}

fn conditions() -> impl Strategy<Value = Option<Condition>> {
    let sources = [
        "data.a == 1",
        "data.a > 0.5",
        "data.a.b == 'a' || data.b",
        "data.all(x, x == data.a)",
        "data.exists(x, x in data)",
        "has(data.a) && data.a != null",
        "data == data && data in [data]",
        "size(data) > 1",
        "data[0] < data[1]",
        "data + data == data",
        "type.matches('^[ab]') && data.a.matches('a')",
        "data.map(x, data.filter(y, y == x)) != []",
        "-data.a < 3 && !(data.b)",
        "string(data.a) == int(data.b) + double(data.c)",
    ];
    let compiled: Vec<_> = sources.iter().map(|source| Condition::compile(source).unwrap()).collect();
    prop_oneof![Just(None), proptest::sample::select(compiled).prop_map(Some)]
}

fn any_subscriber() -> impl Strategy<Value = Subscriber> {
    let pattern = prop_oneof![Just("*"), Just("a"), Just("a.*"), Just("a.b"), Just("a.b.*"), Just("b.*")];
    let patterns = proptest::collection::vec(pattern, 0..3);
    let order = prop_oneof![
        Just("{}"),
        Just("{\"by\":\"subscriber\"}"),
        Just("{\"by\":\"data.a\"}"),
        Just("{\"by\":\"data.a.b\",\"missing\":\"unordered\"}")
    ];
    (0..100i64, patterns, order, conditions()).prop_map(|(no, types, order, condition)| {
        let mut subscriber = wanting(no, &format!("{{\"types\":{}}}", serde_json::json!(types)), order);
        subscriber.definition.matching.condition = condition.as_ref().map(|it| it.source().to_owned());
        subscriber.with_condition(condition)
    })
}

proptest! {
    #[test]
    fn any_data_is_judged(condition in conditions(), data in any_json()) {
        let event = with_data(&data);
        let view = View::new(&event);
        if let Some(condition) = condition {
            let first = condition.judge(&view);
            prop_assert_eq!(first, condition.judge(&view));
        }
        let path = Path::parse("data.a.b").unwrap();
        prop_assert_eq!(lane_of(&view, &path), lane_of(&View::new(&event), &path));
    }

    #[test]
    fn the_table_agrees_with_asking_everyone(
        subscribers in proptest::collection::vec(any_subscriber(), 0..12),
        type_name in "(a|b|c)(\\.(a|b)){0,2}",
        data in any_json(),
    ) {
        let event = event(&type_name, &format!(",\"data\":{data}"));
        let mut subscribers: Vec<_> = subscribers.into_iter().map(Arc::new).collect();
        let router = Router::build(subscribers.clone());
        subscribers.sort_by_key(|subscriber| subscriber.no);
        let view = View::new(&event);
        let expected: Vec<_> = subscribers.iter().filter_map(|subscriber| match subscriber.judge(&view) {
            Judgement::Matched(route) => Some(route),
            Judgement::Unmatched { .. } | Judgement::Skipped { .. } => None,
        }).collect();
        prop_assert_eq!(router.route(&event), expected);
    }

    #[test]
    fn routing_what_changed_agrees_with_routing_all(
        before in proptest::collection::vec(any_subscriber(), 0..12),
        after in proptest::collection::vec(any_subscriber(), 0..12),
        fates in proptest::collection::vec(0..3, 12),
        type_name in "(a|b|c)(\\.(a|b)){0,2}",
        data in any_json(),
    ) {
        let event = event(&type_name, &format!(",\"data\":{data}"));
        let before: BTreeMap<_, _> = before.into_iter().map(|one| (one.no, Arc::new(one))).collect();
        // Some stay, some go, some change; some come.
        let mut now: BTreeMap<_, _> = after.iter().map(|one| (one.no, Arc::new(one.clone()))).collect();
        for (place, (no, one)) in before.iter().enumerate() {
            match (fates[place], after.get(place)) {
                (0, _) => now.insert(*no, Arc::clone(one)),
                (1, Some(other)) => {
                    let mut changed = other.clone();
                    changed.no = *no;
                    now.insert(*no, Arc::new(changed))
                }
                _ => now.remove(no),
            };
        }
        let old = Router::build(before.into_values().collect());
        let new = Router::build(now.into_values().collect());
        let mut routes = old.route(&event);
        new.changes_since(&old).apply(&event, &mut routes);
        prop_assert_eq!(routes, new.route(&event));
    }

    #[test]
    fn any_text_compiles_or_is_refused(source in "[-!?:()\\[\\]{}'\"a-c.,+*/%&|<>=1-3\\\\ \n]{0,60}") {
        let _ = Condition::compile(&source);
    }
}

#[test]
fn who_has_not_changed_is_not_asked_again() {
    let same = Arc::new(subscriber(1, r#"{"destination":{"url":"https://example.com"}}"#));
    let another = |no| Arc::new(subscriber(no, r#"{"destination":{"url":"https://example.com"}}"#));
    let old = Router::build(vec![Arc::clone(&same), another(2), another(3)]);
    let new = Router::build(vec![same, another(2), another(4)]);
    // It would say otherwise if it were asked.
    let mut routes = vec![Route::alone(1, Some(7)), Route::alone(2, Some(7)), Route::alone(3, Some(7))];
    new.changes_since(&old).apply(&with_data("{}"), &mut routes);
    assert_eq!(routes, [Route::alone(1, Some(7)), Route::alone(2, None), Route::alone(4, None)]);
}

#[test]
fn what_is_not_folded_may_end_a_window() {
    let fold =
        r#"{"mode":"window","window":"1h","by":["data.k"],"bypass":"data.now","cancel_on":"data.over"}"#;
    let subscriber =
        subscriber(1, &format!(r#"{{"destination":{{"url":"https://example.com"}},"fold":{fold}}}"#));
    for (now, over, expected) in [
        (false, false, (1, 0, 0)),
        (true, false, (0, 0, 0)),
        (false, true, (1, 0, 1)),
        (true, true, (0, 1, 1)),
    ] {
        let event = with_data(&format!(r#"{{"k":7,"now":{now},"over":{over}}}"#));
        let route = subscriber.matches(&View::new(&event)).unwrap();
        let window = route.window().map(|(appending, _)| appending);
        assert!(window.is_none_or(|window| &*window.key.text == r#"{"data.k":7}"#));
        let cancels = window.map_or(0, |window| window.cancels.len());
        assert_eq!((i32::from(route.fold.is_some()), i32::from(route.ends.is_some()), cancels), expected);
    }
}
