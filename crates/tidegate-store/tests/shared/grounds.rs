//! What a database must be before a store is made in it; whatever is wrong is told with the remedy.

use tidegate_store::Error;
use tidegate_store::doctor::{self, Severity};
use tidegate_store::postgres::connect::Target;
use tidegate_store::postgres::{Periods, PostgresStore, Terms};
use tokio_postgres::Client;
use url::Url;

use super::{NOW, connect};
use crate::schema::Schema;

async fn refusal(url: &str) -> String {
    match open(url).await {
        Err(Error::Unusable(why)) => why,
        Err(error) => panic!("refused for another reason: {error}"),
        Ok(_) => panic!("it was not refused"),
    }
}

async fn open(url: &str) -> tidegate_store::Result<PostgresStore> {
    let terms = Terms { name: "test".to_owned(), periods: Periods::default(), salt: b"salt".to_vec() };
    PostgresStore::open(url, terms, Some(NOW)).await
}

/// What the doctor says of one thing: how bad it is, and what to do.
async fn examined(url: &str, check: &str) -> (Severity, String) {
    let found = doctor::postgres::examine(url, || NOW).await;
    let found = found.into_iter().find(|symptom| symptom.check == check).expect("it is looked at");
    (found.severity, found.remedy.unwrap_or_default())
}

async fn run(client: &Client, statements: &[&str]) {
    for statement in statements {
        // One by one: databases are not made in transactions.
        client.batch_execute(statement).await.unwrap_or_else(|error| panic!("{statement}: {error:?}"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_could_not_keep_every_text_is_left_as_it_is() {
    let schema = Schema::new();
    let session = connect(&schema).await;
    let name = format!("tidegate_ascii_{}", std::process::id());
    let make =
        format!("CREATE DATABASE {name} ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0");
    let drop = format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)");
    run(&session.client, &[&drop, &make]).await;
    let mut url = Url::parse(schema.url()).unwrap();
    url.set_path(&name);
    let why = refusal(url.as_str()).await;
    assert!(why.contains("encoded in SQL_ASCII") && why.contains("ENCODING 'UTF8'"), "{why}");
    let (severity, remedy) = examined(url.as_str(), "database").await;
    assert!(severity == Severity::Failing && remedy.contains("ENCODING 'UTF8'"), "{remedy}");
    let there = Target::parse(url.as_str()).unwrap().connect_plain().await.unwrap();
    let sql = "SELECT count(*) FROM pg_namespace WHERE nspname !~ '^pg_|^information_schema$|^public$'";
    assert_eq!(there.client.query_one(sql, &[]).await.unwrap().get::<_, i64>(0), 0, "nothing was made");
    std::mem::drop(there);
    run(&session.client, &[&drop]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_that_lacks_a_right_is_told_which_and_needs_no_more_than_a_schema() {
    let schema = Schema::new();
    let target = Target::parse(schema.url()).unwrap();
    let session = connect(&schema).await;
    let role = format!("tidegate_guest_{}", std::process::id());
    run(&session.client, &[&format!("CREATE ROLE {role} LOGIN PASSWORD 'guest'")]).await;
    let mut url = Url::parse(schema.url()).unwrap();
    url.set_username(&role).unwrap();
    url.set_password(Some("guest")).unwrap();
    let why = refusal(url.as_str()).await;
    assert!(why.contains("GRANT CREATE ON DATABASE") && why.contains(&role), "{why}");
    let (severity, remedy) = examined(url.as_str(), "rights").await;
    assert!(severity == Severity::Failing && why.ends_with(&remedy), "{remedy}");

    run(&session.client, &[&format!("CREATE SCHEMA {} AUTHORIZATION {role}", target.schema())]).await;
    drop(open(url.as_str()).await.expect("the schema is all it needs"));
    assert_eq!(examined(url.as_str(), "rights").await.0, Severity::Fine);
    // A store that is closed may take a moment to be gone from the server.
    let gone = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = $1";
    session.client.query(gone, &[&role]).await.unwrap();
    run(&session.client, &[&format!("DROP OWNED BY {role}"), &format!("DROP ROLE {role}")]).await;
}
