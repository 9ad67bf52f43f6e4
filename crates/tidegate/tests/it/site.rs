//! Pages: the API drawn by the server itself, and every error explained.

use serde_json::Value;

use crate::client::Client;
use crate::server::Server;

#[test]
fn pages_are_served_without_a_key_and_allow_nothing_from_elsewhere() {
    let server = Server::start();
    let stranger = Client::stranger(server.address);
    for (path, kind) in [
        ("/", "text/html"),
        ("/docs", "text/html"),
        ("/docs/errors", "text/html"),
        ("/docs/docs.js", "text/javascript"),
        ("/docs/docs.css", "text/css"),
        ("/docs/icon.svg", "image/svg+xml"),
    ] {
        let answer = stranger.get(path);
        assert_eq!(answer.status, 200, "{path}");
        assert!(answer.header("content-type").is_some_and(|found| found.starts_with(kind)), "{path}");
        assert!(
            answer
                .header("content-security-policy")
                .is_some_and(|policy| policy.starts_with("default-src 'self'"))
        );
        // Whatever a page links to is there.
        for link in
            answer.text().split(['"']).filter(|part| part.starts_with('/') && !part.contains([' ', '>']))
        {
            let path = link.split('#').next().unwrap_or(link);
            assert!(matches!(stranger.get(path).status, 200), "{link}");
        }
    }
}

#[test]
fn a_problem_points_to_its_explanation() {
    let server = Server::start();
    let page = Client::stranger(server.address).get("/docs/errors").text();
    let description = server.admin().get("/openapi.json").expect(200);
    let codes =
        description["components"]["schemas"]["ProblemCode"]["enum"].as_array().expect("codes").clone();
    for (path, status) in [("/nowhere", 404), ("/v1/events?limit=0", 422), ("/v1/events?typ=x", 422)] {
        let problem = server.admin().get(path).expect(status);
        let anchor =
            problem["type"].as_str().and_then(|kind| kind.strip_prefix("/docs/errors#")).expect("a place");
        assert!(page.contains(&format!("id=\"{anchor}\"")), "{anchor}");
        assert!(codes.contains(&Value::from(anchor)), "{anchor}");
    }
}
