//! Tables as each database writes them down.

use crate::datum::Type;
use crate::mapping::Table;

/// Names and types of a kind of database.
#[derive(Debug)]
pub struct Dialect {
    /// Around names; twice within them.
    pub quote: char,
    /// A column's type, with a blank before it; whether it is in a key or refers to one, and how many such texts the table has.
    pub kind: fn(Option<Type>, Option<usize>) -> String,
    /// Of the column that says since when a row is left.
    pub moment: &'static str,
    /// Behind a table's columns.
    pub options: &'static str,
    /// Whether columns with foreign keys want an index of their own where no key begins with them.
    pub is_to_index: bool,
    /// Makes the table where jobs stand.
    pub checkpoints: &'static [&'static str],
    /// Makes the table of claims.
    pub rows: &'static [&'static str],
}

impl Dialect {
    /// A name as it stands in statements. Names of mappings have letters, digits and underscores alone; those of a document's key
    /// come from `flatbed_rows`.
    pub fn quoted(&self, name: &str) -> String {
        let quote = self.quote;
        format!("{quote}{}{quote}", name.replace(quote, &format!("{quote}{quote}")))
    }

    /// Names, in a list.
    pub fn list<'n>(&self, names: impl IntoIterator<Item = &'n str>) -> String {
        names.into_iter().map(|name| self.quoted(name)).collect::<Vec<_>>().join(", ")
    }
}

/// The names of a key's columns.
pub fn key_of(table: &Table) -> Vec<&str> {
    table.key.iter().filter_map(|at| table.columns.get(*at)).map(|column| column.name.as_str()).collect()
}

/// A column's type: where none is declared, that of what it refers to.
fn kind_of(table: &Table, at: usize, tables: &[Table]) -> Option<Type> {
    let declared = table.columns.get(at).and_then(|column| column.kind);
    let foreign = table.foreign_key.as_ref().filter(|foreign| declared.is_none() && foreign.column == at);
    match foreign.and_then(|foreign| Some((tables.get(foreign.parent)?, foreign.references))) {
        // Parents stand before their children, so this ends.
        Some((parent, references)) => kind_of(parent, references, tables),
        None => declared,
    }
}

/// Statements that make a table.
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
        // Others than the parent's whole key are not unique there.
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
