//! Resource files: YAML documents with a `kind`, read with the place they stand at.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use serde_saphyr::Spanned;

use crate::failure::Failure;

/// What a document describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// An event type of the catalog; applied first, since a strict project needs it.
    Type,
    /// A gate; applied before the subscribers that pass it.
    Gate,
    /// A subscriber.
    Subscriber,
}

impl Kind {
    /// Every kind, in the order in which they are applied.
    pub(crate) const ALL: [Self; 3] = [Self::Type, Self::Gate, Self::Subscriber];

    /// As it is written after `kind:`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Type => "type",
            Self::Gate => "gate",
            Self::Subscriber => "subscriber",
        }
    }
}

/// One document.
#[derive(Debug)]
pub(crate) struct Document {
    /// What it describes.
    pub(crate) kind: Kind,
    /// `file.yaml:12`, for complaints.
    pub(crate) place: String,
    /// Everything but the kind.
    pub(crate) members: Map<String, Value>,
}

/// Reads all documents of files and folders, the latter in the order of their names.
pub(crate) fn read_all(paths: &[PathBuf]) -> Result<Vec<Document>, Failure> {
    let mut documents = Vec::new();
    for path in paths {
        if path.as_os_str() == "-" {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text).map_err(|error| unreadable("stdin", &error))?;
            documents.extend(parse("stdin", &text)?);
        } else if path.is_dir() {
            for file in files_of(path)? {
                documents.extend(read(&file)?);
            }
        } else {
            documents.extend(read(path)?);
        }
    }
    if documents.is_empty() {
        return Err(Failure::usage("there is no document in what -f names")
            .fix("write one, see `tidegate apply --help`, or begin with `tidegate export`"));
    }
    Ok(documents)
}

fn files_of(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let failed = |error: std::io::Error| unreadable(&folder.display().to_string(), &error);
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let extension = path.extension().and_then(|extension| extension.to_str());
        if matches!(extension, Some("yaml" | "yml")) {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn read(path: &Path) -> Result<Vec<Document>, Failure> {
    let name = path.display().to_string();
    let text = fs::read_to_string(path).map_err(|error| unreadable(&name, &error))?;
    parse(&name, &text)
}

fn unreadable(name: &str, error: &std::io::Error) -> Failure {
    Failure::usage(format!("cannot read {name}: {error}"))
}

fn parse(name: &str, text: &str) -> Result<Vec<Document>, Failure> {
    let documents: Vec<Spanned<Option<Map<String, Value>>>> =
        serde_saphyr::from_multiple(text).map_err(|error| {
            Failure::usage(format!("{name} is not what it should be")).detail(error.to_string())
        })?;
    let mut read = Vec::new();
    for spanned in documents {
        let place = format!("{name}:{}", spanned.referenced.line());
        // Nothing between two separators, or a file of comments.
        let Some(mut members) = spanned.value else { continue };
        let kind = take_kind(&mut members, &place)?;
        expand_members(&mut members, &place)?;
        read.push(Document { kind, place, members });
    }
    Ok(read)
}

fn take_kind(members: &mut Map<String, Value>, place: &str) -> Result<Kind, Failure> {
    let named = members.remove("kind");
    let text = named.as_ref().and_then(Value::as_str).unwrap_or_default().to_lowercase();
    Kind::ALL.into_iter().find(|kind| kind.name() == text).ok_or_else(|| {
        let title = match named {
            None => format!("{place}: the document has no `kind`"),
            Some(other) => format!("{place}: {other} is no kind of document"),
        };
        Failure::usage(title)
            .fix(format!("begin it with one of: kind: {}", Kind::ALL.map(Kind::name).join(", kind: ")))
    })
}

fn expand_members(members: &mut Map<String, Value>, place: &str) -> Result<(), Failure> {
    members.values_mut().try_for_each(|value| expand(value, place))
}

/// Replaces `${NAME}` in every text.
fn expand(value: &mut Value, place: &str) -> Result<(), Failure> {
    match value {
        Value::String(text) if text.contains("${") => {
            *text = expand_text(text, place, &|name| std::env::var(name).ok())?;
            Ok(())
        }
        Value::Array(items) => items.iter_mut().try_for_each(|item| expand(item, place)),
        Value::Object(members) => expand_members(members, place),
        _ => Ok(()),
    }
}

fn expand_text(
    text: &str,
    place: &str,
    variable: &dyn Fn(&str) -> Option<String>,
) -> Result<String, Failure> {
    let mut expanded = String::new();
    let mut rest = text;
    while let Some(start) = rest.find("${") {
        if let Some(before) = rest[..start].strip_suffix('$') {
            expanded.push_str(before);
            expanded.push_str("${");
            rest = &rest[start + 2..];
            continue;
        }
        expanded.push_str(&rest[..start]);
        let inner = &rest[start + 2..];
        let end = inner.find('}').ok_or_else(|| Failure::usage(format!("{place}: ${{ without }}")))?;
        let name = &inner[..end];
        let value = variable(name).ok_or_else(|| {
            Failure::usage(format!("{place}: the variable {name} is not set"))
                .fix(format!("export {name}=…, or write $${{ for a plain ${{"))
        })?;
        expanded.push_str(&value);
        rest = &inner[end + 1..];
    }
    expanded.push_str(rest);
    Ok(expanded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_know_their_kind_and_their_place() {
        let text = "# first\nkind: subscriber\nid: a\n---\nkind: Type\nservice: shop\ntype: t\n---\n";
        let documents = parse("x.yaml", text).unwrap();
        assert_eq!(documents.len(), 2);
        assert_eq!((documents[0].kind, documents[0].members["id"].as_str()), (Kind::Subscriber, Some("a")));
        assert_eq!(documents[0].place, "x.yaml:2");
        assert_eq!((documents[1].kind, documents[1].place.as_str()), (Kind::Type, "x.yaml:5"));
    }

    #[test]
    fn what_is_no_document_is_refused_with_its_place() {
        for (text, told) in [
            ("id: a", "no `kind`"),
            ("kind: gizmo", "no kind of document"),
            ("- a", "x.yaml"),
            ("kind: [", "x.yaml"),
        ] {
            let failure = parse("x.yaml", text).unwrap_err().to_string();
            assert!(failure.contains(told), "{failure}");
        }
    }

    #[test]
    fn variables_are_put_in_and_dollars_can_be_kept() {
        let variable = |name: &str| (name == "TOKEN").then(|| "t0".to_owned());
        let expand = |text| expand_text(text, "x", &variable).map_err(|failure| failure.to_string());
        assert_eq!(expand("https://h/${TOKEN}/x").unwrap(), "https://h/t0/x");
        assert_eq!(expand("a $${TOKEN} b").unwrap(), "a ${TOKEN} b");
        assert!(expand("${OTHER}").unwrap_err().contains("OTHER is not set"));
        assert!(expand("${TOKEN").unwrap_err().contains("without"));
    }
}
