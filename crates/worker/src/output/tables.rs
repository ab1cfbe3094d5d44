//! What all targets with tables do, whatever their dialect: the tables are looked at, and made where they are missing; a batch is one
//! transaction, in which the claims of its documents are read, rows and claims written, and the checkpoint that is reached by it,
//! unless another process has raised the job's epoch meanwhile. A kind of target is a [`Driver`]: how its server is spoken to.
//!
//! `flatbed_rows` has the claims, `flatbed_checkpoints` where each job stands.

pub mod dialect;
pub mod fit;
pub mod steps;

use std::sync::Arc;

use flatbed_clock::Clock;

use super::{Delivery, Refused, Target};
use crate::checkpoint::Checkpoint;
use crate::difference::Claim;
use crate::failure::Failure;
use crate::mapping::Table;
use crate::memory::Charge;
use dialect::{Dialect, definition};
use fit::{Found, is_replaceable, misfit, missing};
use steps::{Step, steps, with_children};

/// The table of the claims.
pub const ROWS: &str = "flatbed_rows";

/// Claims of the documents of a batch: one with more is split.
pub const CLAIMS_MAX: usize = 200_000;

/// What they may take, in bytes, with their documents' ids.
pub const CLAIMS_BYTES_MAX: usize = 32 << 20;

/// The table of where jobs stand.
pub const CHECKPOINTS: &str = "flatbed_checkpoints";

/// A batch, as a driver writes it.
#[derive(Debug)]
pub struct Batch {
    /// Whose it is.
    pub job: String,
    /// The tables of the mapping.
    pub tables: Arc<Vec<Table>>,
    /// What the target has of each of them.
    pub found: Arc<Vec<Found>>,
    /// What is to become of documents.
    pub deliveries: Arc<Vec<Delivery>>,
    /// What is to be done for it, in this order.
    pub steps: Vec<Step>,
    /// When rows are left that stay, as ISO 8601 in UTC.
    pub now: String,
    /// What it takes.
    pub room: Option<Arc<Charge>>,
}

/// What a target's transaction begins with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Opening {
    /// Whose it is.
    pub job: String,
    /// Who holds the job with a higher one has taken it over.
    pub epoch: i64,
    /// What is reached by it; `None`: what stands there stays.
    pub checkpoint: Option<String>,
    /// The documents whose claims are wanted.
    pub documents: Vec<String>,
    /// Where these are put.
    pub claims: Claims,
}

/// Claims with their documents, as they are read: no more than there may be, and one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claims {
    all: Vec<(String, Claim)>,
    bytes: usize,
    count_max: usize,
    bytes_max: usize,
}

impl Claims {
    /// So many at most, of so many bytes.
    pub fn within(count_max: usize, bytes_max: usize) -> Claims {
        Claims { all: Vec::new(), bytes: 0, count_max, bytes_max }
    }

    /// Takes one in. False: those are more than there may be, and no further one is to be read.
    #[must_use]
    pub fn take(&mut self, document: String, claim: Claim) -> bool {
        self.bytes += document.len() + claim.table.len() + claim.key.len();
        self.all.push((document, claim));
        self.is_within()
    }

    /// How many were taken in.
    pub fn count(&self) -> usize {
        self.all.len()
    }

    fn is_within(&self) -> bool {
        self.all.len() <= self.count_max && self.bytes <= self.bytes_max
    }

    /// All of them. `None`: there are more than there may be.
    pub fn all(self) -> Option<Vec<(String, Claim)>> {
        self.is_within().then_some(self.all)
    }
}

/// A database, as its kind speaks. Each wait of it has an end, after which its connection is given up.
pub trait Driver: Send {
    /// Names and types, as it writes them.
    fn dialect(&self) -> &'static Dialect;

    /// Connects, unless it is connected. Whether it did: then nothing is known of the tables any more.
    ///
    /// # Errors
    /// [`Refused`].
    fn connect(&mut self) -> impl Future<Output = Result<bool, Refused>> + Send;

    /// What it has of a table. `None`: there is no such table.
    ///
    /// # Errors
    /// [`Refused`].
    fn look(&mut self, table: String) -> impl Future<Output = Result<Option<Found>, Refused>> + Send;

    /// Makes tables.
    ///
    /// # Errors
    /// [`Refused`].
    fn make(&mut self, statements: Vec<String>) -> impl Future<Output = Result<(), Refused>> + Send;

    /// Whether a job has claims of a table.
    ///
    /// # Errors
    /// [`Refused`].
    fn has_claims(&mut self, job: String, table: String) -> impl Future<Output = Result<bool, Refused>> + Send;

    /// Raises a job's epoch, and says where it stands: an empty text where it never was. `None`: its epoch is higher.
    ///
    /// # Errors
    /// [`Refused`].
    fn take_over(&mut self, job: String, epoch: i64) -> impl Future<Output = Result<Option<String>, Refused>> + Send;

    /// Begins a transaction with the checkpoint in it. The documents' claims; `None`: the job is another process's, and no
    /// transaction is open.
    ///
    /// # Errors
    /// [`Refused`]; no transaction is open then.
    fn open(&mut self, opening: Opening) -> impl Future<Output = Result<Option<Claims>, Refused>> + Send;

    /// Does what a batch wants, and commits.
    ///
    /// # Errors
    /// [`Refused`]; the transaction is rolled back, or, if the connection was lost, may have been committed.
    fn close(&mut self, batch: Arc<Batch>) -> impl Future<Output = Result<(), Refused>> + Send;

    /// Gives up a transaction that is open.
    fn abandon(&mut self) -> impl Future<Output = ()> + Send;
}

/// A job's tables in a database.
#[derive(Debug)]
pub struct Tables<D> {
    driver: D,
    job: String,
    tables: Arc<Vec<Table>>,
    is_to_create: bool,
    epoch: i64,
    /// What the connection's database has of them; `None`: it has not been looked at.
    found: Option<Arc<Vec<Found>>>,
    /// Of the batch that is delivered.
    room: Option<Arc<Charge>>,
    clock: Clock,
}

impl<D: Driver> Tables<D> {
    /// Nothing is connected yet. `is_to_create`: tables that are missing when a run begins are made.
    pub fn new(driver: D, job: &str, tables: &[Table], is_to_create: bool) -> Tables<D> {
        let tables = Arc::new(tables.to_vec());
        let (job, clock) = (job.to_owned(), Clock::default());
        Tables { driver, job, tables, is_to_create, epoch: 0, found: None, room: None, clock }
    }

    /// Takes the time from `clock` instead of the machine's.
    #[must_use]
    pub fn timed_by(self, clock: Clock) -> Tables<D> {
        Tables { clock, ..self }
    }

    /// What it writes to.
    pub fn driver(&mut self) -> &mut D {
        &mut self.driver
    }

    /// Connects, and looks at the tables where that is new. Tables are made only when a run begins: one that somebody drops later is
    /// missed, rather than made again without its rows.
    async fn ready(&mut self, is_beginning: bool) -> Result<Arc<Vec<Found>>, Refused> {
        let is_new = self.driver.connect().await?;
        if let Some(found) = self.found.as_ref().filter(|_| !is_new && !is_beginning) {
            return Ok(found.clone());
        }
        self.found = None;
        let dialect = self.driver.dialect();
        if is_beginning {
            for (name, statements) in [(CHECKPOINTS, dialect.checkpoints), (ROWS, dialect.rows)] {
                match self.driver.look(name.to_owned()).await? {
                    None => {
                        self.driver.make(statements.iter().map(|&statement| statement.to_owned()).collect()).await?
                    }
                    Some(Found { engine: Some(engine), .. }) => {
                        let error = format!("the table {name}: its engine {engine} has no transactions");
                        return Err(Refused::Unfit(error));
                    }
                    Some(_) => {}
                }
            }
        }
        let mut all = Vec::with_capacity(self.tables.len());
        for table in self.tables.clone().iter() {
            let mut found = self.driver.look(table.name.clone()).await?;
            if found.is_none() && is_beginning && self.is_to_create {
                if self.driver.has_claims(self.job.clone(), table.name.clone()).await? {
                    let error = format!(
                        "the table {} is gone, and this job's rows with it: bring it back, or delete the job's rows of {ROWS} and reset it",
                        table.name
                    );
                    return Err(Refused::failed(Failure::Sql(*b"42P01"), error));
                }
                self.driver.make(definition(dialect, table, &self.tables)).await?;
                found = self.driver.look(table.name.clone()).await?;
            }
            let gone = |state: &[u8; 5], what: String| Err(Refused::failed(Failure::Sql(*state), what));
            let Some(found) = found else {
                return gone(b"42P01", format!("there is no such table: {}", table.name));
            };
            if let Some(column) = missing(table, &found) {
                return gone(b"42703", format!("the table {} has no column {column}", table.name));
            }
            if let Some(misfit) = misfit(table, &found) {
                return Err(Refused::Unfit(format!("the table {}: {misfit}", table.name)));
            }
            all.push(found);
        }
        let found = Arc::new(all);
        self.found = Some(found.clone());
        Ok(found)
    }

    async fn attempt(
        &mut self,
        found: &Arc<Vec<Found>>,
        deliveries: &Arc<Vec<Delivery>>,
        checkpoint: Option<&Checkpoint>,
        replaced: &[bool],
        is_with_children: bool,
    ) -> Result<(), Refused> {
        let opening = Opening {
            job: self.job.clone(),
            epoch: self.epoch,
            checkpoint: checkpoint.map(|checkpoint| String::from_utf8(checkpoint.write(None)).unwrap_or_default()),
            documents: deliveries.iter().map(|delivery| delivery.id.clone()).collect(),
            claims: Claims::within(CLAIMS_MAX, CLAIMS_BYTES_MAX),
        };
        let claims = self.driver.open(opening).await?.ok_or(Refused::Superseded)?;
        let Some(before) = claims.all() else {
            self.driver.abandon().await;
            return Err(Refused::failed(Failure::TooLarge, "the documents of the batch have too many rows"));
        };
        let mut steps = steps(&self.tables, deliveries, &before, replaced);
        if is_with_children {
            steps = with_children(&self.tables, steps);
        }
        let (tables, found, deliveries) = (self.tables.clone(), found.clone(), deliveries.clone());
        let (job, now, room) = (self.job.clone(), crate::time::now(&self.clock).to_string(), self.room.clone());
        self.driver.close(Arc::new(Batch { job, tables, found, deliveries, steps, now, room })).await
    }

    async fn take_in(&mut self, batch: Vec<Delivery>, checkpoint: Option<Checkpoint>) -> Result<(), Refused> {
        let found = self.ready(false).await?;
        let deliveries = Arc::new(batch);
        let refused = match self.attempt(&found, &deliveries, checkpoint.as_ref(), &[], false).await {
            Err(refused) if refused.is_of_unique_values() || refused.is_of_foreign_keys() => refused,
            done => return done,
        };
        if refused.is_of_foreign_keys() {
            return match self.attempt(&found, &deliveries, checkpoint.as_ref(), &[], true).await {
                Err(again) if again.is_poison() => Err(refused),
                done => done,
            };
        }
        // Documents may exchange a value that only one row may have: then rows must go before others come. Only rows of which
        // nothing is lost by that.
        let replaced = is_replaceable(&self.tables, &found);
        if !replaced.contains(&true) {
            return Err(refused);
        }
        match self.attempt(&found, &deliveries, checkpoint.as_ref(), &replaced, false).await {
            // What the first said is what it is about.
            Err(again) if again.is_poison() => Err(refused),
            done => done,
        }
    }
}

impl<D: Driver> Target for Tables<D> {
    fn keeps_checkpoint(&self) -> bool {
        true
    }

    async fn begin(&mut self, epoch: u64) -> Result<Option<Checkpoint>, Refused> {
        self.ready(true).await?;
        self.epoch = i64::try_from(epoch).unwrap_or(i64::MAX);
        let text = self.driver.take_over(self.job.clone(), self.epoch).await?.ok_or(Refused::Superseded)?;
        Ok(Checkpoint::read(text.as_bytes()))
    }

    fn hold(&mut self, room: Arc<Charge>) {
        self.room = Some(room);
    }

    async fn deliver(&mut self, batch: Vec<Delivery>, checkpoint: Option<Checkpoint>) -> Result<(), Refused> {
        let done = self.take_in(batch, checkpoint).await;
        self.room = None;
        done
    }
}
