//! Dialects: the definition of tables in each database.

use crate::datum::Type;
use crate::mapping::Table;

/// The names and types of a kind of database.
#[derive(Debug)]
pub struct Dialect {
    /// The quotation mark of names; doubled within them.
    pub quote: char,
    /// A column's type with a leading space, from the declared type and, if the column is in a key or refers to one,
    /// the number of such texts in the table.
    pub kind: fn(Option<Type>, Option<usize>) -> String,
    /// The type of the column with the time of deletion.
    pub moment: &'static str,
    /// The clause after a table's columns.
    pub options: &'static str,
    /// True if foreign keys need an index of their own unless a key begins with them.
    pub is_to_index: bool,
    /// The statements that create the table of checkpoints.
    pub checkpoints: &'static [&'static str],
    /// The statements that create the table of claims.
    pub rows: &'static [&'static str],
}

impl Dialect {
    /// Quotes a name. Names in mappings have only letters, digits and underscores; those in a document's keys come from
    /// `flatbed_rows`.
    pub fn quoted(&self, name: &str) -> String {
        let quote = self.quote;
        format!("{quote}{}{quote}", name.replace(quote, &format!("{quote}{quote}")))
    }

    /// Returns a list of quoted names.
    pub fn list<'n>(&self, names: impl IntoIterator<Item = &'n str>) -> String {
        names.into_iter().map(|name| self.quoted(name)).collect::<Vec<_>>().join(", ")
    }
}

/// Returns the names of a key's columns.
pub fn key_of(table: &Table) -> Vec<&str> {
    table.key.iter().filter_map(|at| table.columns.get(*at)).map(|column| column.name.as_str()).collect()
}

/// Returns a column's type; if none is declared, that of the column that it references.
fn kind_of(table: &Table, at: usize, tables: &[Table]) -> Option<Type> {
    let declared = table.columns.get(at).and_then(|column| column.kind);
    let foreign = table.foreign_key.as_ref().filter(|foreign| declared.is_none() && foreign.column == at);
    match foreign.and_then(|foreign| Some((tables.get(foreign.parent)?, foreign.references))) {
        // Terminates, because parents come before their children.
        Some((parent, references)) => kind_of(parent, references, tables),
        None => declared,
    }
}

/// Returns the statements that create a table.
pub fn definition(dialect: &Dialect, table: &Table, tables: &[Table]) -> Vec<String> {
    let is_text = |at: &usize| matches!(kind_of(table, *at, tables), None | Some(Type::Text(_) | Type::Json));
    let is_foreign = |at: usize| table.foreign_key.as_ref().is_some_and(|foreign| foreign.column == at);
    let texts = table.key.iter().filter(|at| is_text(at)).count();
    let mut parts: Vec<String> = Vec::new();
    for (at, column) in table.columns.iter().enumerate() {
        let is_key = table.key.contains(&at);
        let kind = (dialect.kind)(kind_of(table, at, tables), (is_key || is_foreign(at)).then_some(texts));
        let null = if column.is_nullable && !is_key { "" } else { " NOT NULL" };
        parts.push(format!("{}{kind}{null}", dialect.quoted(&column.name)));
    }
    if let Some(column) = &table.soft_delete_column {
        parts.push(format!("{} {}", dialect.quoted(column), dialect.moment));
    }
    parts.push(format!("PRIMARY KEY ({})", dialect.list(key_of(table))));
    let mut index = None;
    if let Some(foreign) = &table.foreign_key
        && let Some(parent) = tables.get(foreign.parent)
        && let Some(refers) = parent.columns.get(foreign.references)
        // Only the parent's whole key is unique.
        && parent.key == [foreign.references]
        && let Some(column) = table.columns.get(foreign.column)
    {
        let column = dialect.quoted(&column.name);
        let refers = dialect.quoted(&refers.name);
        parts.push(format!("FOREIGN KEY ({column}) REFERENCES {} ({refers})", dialect.quoted(&parent.name)));
        if dialect.is_to_index && table.key.first() != Some(&foreign.column) {
            index = Some(format!("CREATE INDEX ON {} ({column})", dialect.quoted(&table.name)));
        }
    }
    let table = dialect.quoted(&table.name);
    let mut statements = vec![format!("CREATE TABLE {table} ({}){}", parts.join(", "), dialect.options)];
    statements.extend(index);
    statements
}
