//! What the commands for keys, projects, subscribers and deliveries have in common.
//!
//! A [`Session`] is a client and an output; it lists a page, shows one thing, or confirms an action. In JSON mode
//! the answer of the API is passed on as it came. An empty list says which command fills it.

use std::io;

use anyhow::Context as _;
use clap::Args;
use http::Method;
use serde_json::{Value, json};

use crate::client::{Answer, Client};
use crate::commands::Globals;
use crate::failure::Failure;
use crate::output::{self, Colour, Output, cell, plain};

/// A column or a line: its title, and the member that fills it.
pub(crate) type Column = (&'static str, &'static str);

/// Which page of a list.
#[derive(Args)]
pub(crate) struct Page {
    /// Items at most
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=500))]
    limit: Option<u16>,
    /// Go on where the previous page ended
    #[arg(long)]
    cursor: Option<String>,
}

impl Page {
    /// All there is, of what comes on one page.
    pub(crate) fn whole() -> Self {
        Self { limit: None, cursor: None }
    }
}

/// One command's conversation with the API.
pub(crate) struct Session {
    client: Client,
    /// Where the result goes.
    pub(crate) output: Output,
}

impl Session {
    /// Reads the address and the key.
    pub(crate) fn new(globals: &Globals) -> Result<Self, Failure> {
        Ok(Self { client: Client::new(globals)?, output: Output::new(globals.json) })
    }

    /// Lists one page; `empty` is said when there is nothing.
    pub(crate) async fn list(
        &mut self,
        path: &[&str],
        filters: &[(&str, Option<&str>)],
        page: &Page,
        columns: &[Column],
        empty: &str,
    ) -> anyhow::Result<()> {
        self.list_edited(path, filters, page, columns, empty, &|_| ()).await
    }

    /// The same; `edit` makes an item ready for people.
    pub(crate) async fn list_edited(
        &mut self,
        path: &[&str],
        filters: &[(&str, Option<&str>)],
        page: &Page,
        columns: &[Column],
        empty: &str,
        edit: &dyn Fn(&mut Value),
    ) -> anyhow::Result<()> {
        let limit = page.limit.map(|limit| limit.to_string());
        let paging = [("limit", limit.as_deref()), ("cursor", page.cursor.as_deref())];
        let named = filters.iter().chain(&paging);
        let query: Vec<(&str, &str)> = named.filter_map(|(name, value)| Some((*name, (*value)?))).collect();
        let answer = self.client.get(path, &query).await?;
        if self.output.json {
            self.output.raw(&answer.body)?;
        } else {
            let mut answer = answer.json()?;
            answer["items"].as_array_mut().into_iter().flatten().for_each(edit);
            self.output.line(&list_text(&answer, columns, empty, None))?;
        }
        Ok(())
    }

    /// One member of everything that a list has, page after page.
    pub(crate) async fn all(&mut self, path: &[&str], member: &str) -> Result<Vec<String>, Failure> {
        let (mut found, mut cursor) = (Vec::new(), None::<String>);
        loop {
            let query: Vec<(&str, &str)> = cursor.iter().map(|cursor| ("cursor", cursor.as_str())).collect();
            let page = self.client.get(path, &query).await?.json()?;
            let items = page["items"].as_array().into_iter().flatten();
            found.extend(items.filter_map(|item| item[member].as_str().map(str::to_owned)));
            match page["next"].as_str() {
                Some(next) => cursor = Some(next.to_owned()),
                None => return Ok(found),
            }
        }
    }

    /// Reads one thing.
    pub(crate) async fn get(&mut self, path: &[&str]) -> Result<Answer, Failure> {
        self.client.get(path, &[]).await
    }

    /// Reads one thing that a query tells from others.
    pub(crate) async fn get_with(
        &mut self,
        path: &[&str],
        query: &[(&str, &str)],
    ) -> Result<Answer, Failure> {
        self.client.get(path, query).await
    }

    /// Makes something and returns what the API said about it.
    pub(crate) async fn create(&mut self, path: &[&str], body: &Value) -> Result<Answer, Failure> {
        self.client.act(Method::POST, path, Some(body)).await
    }

    /// The same with a query.
    pub(crate) async fn create_with(
        &mut self,
        path: &[&str],
        query: &[(&str, &str)],
        body: &Value,
    ) -> Result<Answer, Failure> {
        self.client.ask(Method::POST, path, query, body).await
    }

    /// Does something to one thing and confirms it as `done` of `id`.
    pub(crate) async fn confirm(
        &mut self,
        method: Method,
        path: &[&str],
        done: &str,
        id: &str,
    ) -> anyhow::Result<()> {
        self.confirm_with(method, path, None, done, id).await
    }

    /// The same with a body.
    pub(crate) async fn confirm_with(
        &mut self,
        method: Method,
        path: &[&str],
        body: Option<&Value>,
        done: &str,
        id: &str,
    ) -> anyhow::Result<()> {
        let answer = self.client.act(method, path, body).await?;
        if !self.output.json {
            return Ok(self.done(&format!("{done} {id}"))?);
        }
        if answer.body.is_empty() {
            return Ok(self.output.line(&json!({ done: id }).to_string())?);
        }
        Ok(self.output.raw(&answer.body)?)
    }

    /// Prints one thing: its members a line each, or the answer as it came.
    pub(crate) fn show(&self, answer: &Answer, lines: &[Column]) -> anyhow::Result<Option<Value>> {
        self.show_edited(answer, lines, &|_| ())
    }

    /// The same; `edit` makes it ready for people.
    pub(crate) fn show_edited(
        &self,
        answer: &Answer,
        lines: &[Column],
        edit: &dyn Fn(&mut Value),
    ) -> anyhow::Result<Option<Value>> {
        if self.output.json {
            self.output.raw(&answer.body)?;
            return Ok(None);
        }
        let mut item = answer.json()?;
        edit(&mut item);
        self.output.line(&item_text(&item, lines))?;
        Ok(Some(item))
    }

    /// A line with a tick.
    pub(crate) fn done(&self, text: &str) -> io::Result<()> {
        self.output.line(&format!("{} {}", self.output.paint.text(Colour::Green, "✓"), plain(text)))
    }
}

/// The JSON of a file, or of stdin for `-`.
pub(crate) fn from_file(path: &str) -> anyhow::Result<Value> {
    let text = match path {
        "-" => io::read_to_string(io::stdin()).context("can not read stdin")?,
        path => std::fs::read_to_string(path).with_context(|| format!("can not read {path}"))?,
    };
    serde_json::from_str(&text)
        .map_err(|error| Failure::usage(format!("{path} is not JSON")).detail(error.to_string()).into())
}

fn list_text(answer: &Value, columns: &[Column], empty: &str, width: Option<u16>) -> String {
    let items = answer.get("items").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let next = answer.get("next").and_then(Value::as_str).map(plain);
    let more = next.map(|cursor| format!("There is more: --cursor {cursor}"));
    if items.is_empty() {
        return more.unwrap_or_else(|| empty.to_owned());
    }
    let mut text = table_text(items, columns, width);
    if let Some(more) = more {
        text.push_str("\n\n");
        text.push_str(&more);
    }
    text
}

/// Items under the columns' titles.
pub(crate) fn table_text(items: &[Value], columns: &[Column], width: Option<u16>) -> String {
    let header: Vec<&str> = columns.iter().map(|(title, _)| *title).collect();
    let row = |item| columns.iter().map(|(_, path)| cell(item, path)).collect();
    let rows: Vec<Vec<String>> = items.iter().map(row).collect();
    output::table(&header, &rows, width)
}

/// Members that are there, a line each.
fn item_text(item: &Value, lines: &[Column]) -> String {
    let filled = lines
        .iter()
        .map(|(title, path)| (*title, cell(item, path)))
        .filter(|(_, value)| value != "-" && !value.is_empty());
    let texts: Vec<String> = filled.map(|(title, value)| format!("{title:<14}{}", plain(&value))).collect();
    texts.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: [Column; 3] = [("ID", "id"), ("ACTIVE", "active"), ("URL", "destination.url")];

    #[test]
    fn a_list_is_a_table_and_says_when_there_is_more() {
        let answer = json!({"items":[
            {"id":"sub_1","active":true,"destination":{"url":"https://a"}},
            {"id":"sub_22","active":false}
        ],"next":"abc"});
        let expected = "\
ID      ACTIVE  URL
sub_1   true    https://a
sub_22  false   -

There is more: --cursor abc";
        assert_eq!(list_text(&answer, &COLUMNS, "none", Some(80)), expected);
    }

    #[test]
    fn an_empty_list_shows_the_next_command_unless_there_is_more() {
        let empty = json!({"items":[],"next":null});
        assert_eq!(list_text(&empty, &COLUMNS, "run this", None), "run this");
        let scanned = json!({"items":[],"next":"c"});
        assert_eq!(list_text(&scanned, &COLUMNS, "run this", None), "There is more: --cursor c");
    }

    #[test]
    fn an_item_lists_what_it_has() {
        let item = json!({"id":"sub_1","active":true});
        assert_eq!(item_text(&item, &COLUMNS), "ID            sub_1\nACTIVE        true");
    }
}
