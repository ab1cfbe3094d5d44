//! The command line of `flatbed import`.

use std::path::PathBuf;

use flatbed_service::shown_address;
use lexopt::prelude::*;

/// The most databases that are copied at once.
const PARALLEL_MAX: usize = 64;
const PARALLEL: usize = 4;

/// The options of `flatbed import`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Import {
    /// The server to copy from, or a database at the administrators' port of a Sync Gateway; `-`: stdin has it.
    pub source: String,
    pub is_sync_gateway: bool,
    /// The server to copy to, if not `FLATBED_URL` or the default.
    pub to: Option<String>,
    /// Patterns of databases; all if there is none.
    pub only: Vec<String>,
    /// Patterns of databases that are not copied.
    pub except: Vec<String>,
    /// True if local documents are copied.
    pub local: bool,
    /// True if administrators are copied.
    pub admins: bool,
    /// True if both sides are compared afterwards.
    pub verify: bool,
    /// The number of databases that are copied at once.
    pub parallel: usize,
    /// PEM of further authorities for `https://`.
    pub ca: Option<PathBuf>,
}

/// Parses the arguments after `import`; `None` if help is requested.
pub(crate) fn parse(parser: &mut lexopt::Parser) -> Result<Option<Import>, lexopt::Error> {
    let mut import = Import {
        source: String::new(),
        is_sync_gateway: false,
        to: None,
        only: Vec::new(),
        except: Vec::new(),
        local: false,
        admins: false,
        verify: false,
        parallel: PARALLEL,
        ca: None,
    };
    let mut source = None;
    while let Some(argument) = parser.next()? {
        match argument {
            Short('h') | Long("help") => return Ok(None),
            Long("sync-gateway") => import.is_sync_gateway = true,
            Long("to") => import.to = Some(parser.value()?.string()?),
            Long("only") => import.only.push(parser.value()?.string()?),
            Long("except") => import.except.push(parser.value()?.string()?),
            Long("local") => import.local = true,
            Long("admins") => import.admins = true,
            Long("verify") => import.verify = true,
            Long("parallel") => import.parallel = parser.value()?.parse()?,
            Long("ca") => import.ca = Some(parser.value()?.into()),
            Value(value) if source.is_none() => source = Some(value.string()?),
            // A second URL may have a password, too.
            Value(value) => {
                let shown = shown_address(&value.to_string_lossy());
                return Err(format!("unexpected argument {shown:?}").into());
            }
            other => return Err(other.unexpected()),
        }
    }
    import.source = source.ok_or("flatbed import needs the URL of a server")?;
    if !(1..=PARALLEL_MAX).contains(&import.parallel) {
        return Err(format!("--parallel is 1 to {PARALLEL_MAX}").into());
    }
    if import.is_sync_gateway && (import.verify || import.local || import.admins) {
        return Err("--verify, --local and --admins are for servers with CouchDB's API".into());
    }
    Ok(Some(import))
}

pub(crate) const HELP: &str = "\
flatbed import http[s]://admin:password@host:port [OPTIONS]
flatbed import --sync-gateway http://host:4985/db [OPTIONS]

The URL may be - : it is read from stdin, so that the list of processes does not show its password.

Copies the databases of a CouchDB, or of another server with its API, into a running Flatbed: all leaves with their
histories and attachments, deletions, design documents, _security, _revs_limit and partitions, and users with their
passwords. Documents of _replicator arrive paused. An import that was stopped resumes where it was, and a further run
copies what changed since. At its end it lists what was not moved.
Exit status: 0 all moved (and equal, with --verify), 1 something was not moved, or differs, 2 not done.

  --to URL         the server to copy to: http[s]://[name:password@]host:port
                   [FLATBED_URL, else http://127.0.0.1:5984]; with --sync-gateway its administrators' port
  --only GLOB      copy the databases of this name; * stands for any characters, ? for one; may be repeated
  --except GLOB    do not copy the databases of this name; may be repeated
  --local          copy local documents too; those of the target are replaced
  --admins         copy administrators too, with their passwords; those of the target stay
  --verify         compare counts, leaves and some bodies and attachments afterwards
  --parallel N     copy N databases at once, 1 to 64 [4]
  --ca FILE        PEM of further authorities for https://
  --sync-gateway   copy one database of a Sync Gateway: users, roles, the sync function and documents
";

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Option<Import>, String> {
        parse(&mut lexopt::Parser::from_args(line.split_whitespace())).map_err(|error| error.to_string())
    }

    #[test]
    fn options() {
        let import = parsed("http://a --only x* --only y --except z --local --verify --parallel 9 --to http://b");
        let import = import.unwrap().unwrap();
        assert_eq!((import.source.as_str(), import.to.as_deref(), import.parallel), ("http://a", Some("http://b"), 9));
        assert_eq!((import.only, import.except), (vec!["x*".to_owned(), "y".to_owned()], vec!["z".to_owned()]));
        assert!(import.local && import.verify && !import.admins && !import.is_sync_gateway);
        assert!(parsed("--sync-gateway http://a/db").unwrap().unwrap().is_sync_gateway);
        assert!(parsed("--sync-gateway http://a/db --verify").is_err());
        assert_eq!(parsed("--help"), Ok(None));
        assert_eq!(parsed(""), Err("flatbed import needs the URL of a server".to_owned()));
        assert_eq!(parsed("http://a --parallel 0"), Err("--parallel is 1 to 64".to_owned()));
        let another = Err("unexpected argument \"http://b\"".to_owned());
        assert_eq!(parsed("http://a http://anna:s3cret@b?token=s3cret"), another);
    }
}
