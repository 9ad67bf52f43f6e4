//! What a database must be before a store is made in it; whatever is wrong is told with the remedy.

use tidegate_store::doctor::{self, Severity};
use tidegate_store::postgres::connect::Target;
use tidegate_store::postgres::{Periods, PostgresStore, Terms};
use tidegate_store::{Error, Store};
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

/// A role of its own, and the URL by which it comes in.
pub(crate) async fn guest(client: &Client, schema: &Schema, name: &str) -> (String, Url) {
    let role = format!("tidegate_{name}_{}", std::process::id());
    run(client, &[&format!("CREATE ROLE {role} LOGIN PASSWORD 'guest'")]).await;
    let mut url = Url::parse(schema.url()).unwrap();
    url.set_username(&role).unwrap();
    url.set_password(Some("guest")).unwrap();
    (role, url)
}

pub(crate) async fn forget(client: &Client, role: &str) {
    let gone = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = $1";
    client.query(gone, &[&role]).await.unwrap();
    run(client, &[&format!("DROP OWNED BY {role}"), &format!("DROP ROLE {role}")]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_that_may_only_read_is_told_so_by_both() {
    let schema = Schema::new();
    let session = connect(&schema).await;
    let (role, url) = guest(&session.client, &schema, "reader").await;
    run(&session.client, &[&format!("ALTER ROLE {role} SET default_transaction_read_only = on")]).await;
    let why = refusal(url.as_str()).await;
    let (severity, remedy) = examined(url.as_str(), "database").await;
    assert!(severity == Severity::Failing && why.ends_with(&remedy), "{why} / {remedy}");
    assert!(remedy.contains("RESET default_transaction_read_only"), "{remedy}");
    forget(&session.client, &role).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_without_a_right_in_the_schema_is_told_the_same_by_both() {
    let schema = Schema::new();
    let target = Target::parse(schema.url()).unwrap();
    let session = connect(&schema).await;
    let (role, url) = guest(&session.client, &schema, "stranger").await;
    run(&session.client, &[&format!("CREATE SCHEMA {}", target.schema())]).await;
    let why = refusal(url.as_str()).await;
    let (severity, remedy) = examined(url.as_str(), "rights").await;
    assert!(severity == Severity::Failing && why.ends_with(&remedy), "{why} / {remedy}");
    run(&session.client, &[&remedy]).await;
    drop(open(url.as_str()).await.expect("the remedy helps"));
    forget(&session.client, &role).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schema_that_is_a_word_of_sql_is_refused_in_words() {
    let schema = Schema::new();
    let target = Target::parse(schema.url()).unwrap();
    let url = schema.url().replace(target.schema(), "user");
    let why = open(&url).await.err().expect("it can not be named").to_string();
    assert!(why.contains("the schema user is a word of SQL"), "{why}");
}

#[tokio::test(flavor = "multi_thread")]
async fn transactions_that_can_not_be_seen_are_told_of() {
    let schema = Schema::new();
    let target = Target::parse(schema.url()).unwrap();
    let session = connect(&schema).await;
    let (role, url) = guest(&session.client, &schema, "blind").await;
    run(&session.client, &[&format!("CREATE SCHEMA {} AUTHORIZATION {role}", target.schema())]).await;
    let open = open(url.as_str()).await.expect("the schema is all it needs");
    let other = connect(&schema).await;
    // A snapshot that is kept, of a role that the guest may not look at.
    run(&other.client, &["BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1"]).await;
    let value = async |name: &str| {
        let vitals = open.health().await.expect("it answers");
        vitals.iter().find(|vital| vital.name == name).map(|vital| vital.value)
    };
    let (oldest, hidden) = ("postgres_oldest_transaction_seconds", "postgres_transactions_hidden");
    assert_eq!(value(oldest).await, None, "it is not claimed to be young");
    assert!(value(hidden).await.is_some_and(|count| count >= 1.0));
    let (severity, remedy) = examined(url.as_str(), "upkeep").await;
    assert_eq!((severity, remedy), (Severity::Warning, format!("GRANT pg_read_all_stats TO \"{role}\"")));

    run(&session.client, &[&format!("GRANT pg_read_all_stats TO {role}")]).await;
    assert!(value(oldest).await.is_some() && value(hidden).await == Some(0.0));
    assert_eq!(examined(url.as_str(), "upkeep").await.0, Severity::Fine);
    drop((other, open));
    forget(&session.client, &role).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_away_does_not_hide_the_next() {
    let schema = Schema::new();
    let url = Url::parse(schema.url()).unwrap();
    let there = format!("{}:{}", url.host_str().unwrap(), url.port().unwrap_or(5432));
    let both = schema.url().replacen(&there, &format!("127.0.0.1:1,{there}"), 1);
    assert_ne!(both, schema.url());
    drop(open(&both).await.expect("the second is there"));
    assert_eq!(examined(&both, "database").await.0, Severity::Fine);

    let nobody = schema.url().replacen(&there, "127.0.0.1:1,127.0.0.1:2", 1);
    let why = open(&nobody).await.err().expect("none is there").to_string();
    assert!(why.contains("127.0.0.1:1: ") && why.contains("127.0.0.1:2: "), "{why}");
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_is_not_let_in_is_told_what_to_do() {
    let schema = Schema::new();
    let mut url = Url::parse(schema.url()).unwrap();
    url.set_path("/no_such_database");
    assert!(examined(url.as_str(), "database").await.1.contains("CREATE DATABASE"));
    let why = open(url.as_str()).await.err().expect("there is none").to_string();
    assert!(why.contains("CREATE DATABASE"), "{why}");
    let encrypted = format!("{}&sslmode=verify-full", schema.url());
    let (_, remedy) = examined(&encrypted, "database").await;
    assert!(remedy.contains("sslmode=disable"), "{remedy}");
}
