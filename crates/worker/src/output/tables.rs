//! The common part of targets with tables, independent of the dialect: checks the tables and creates missing ones. Each
//! batch is one transaction, which reads the claims of its documents and writes rows, claims and the checkpoint, unless
//! another process has raised the job's epoch. A kind of target is a [`Driver`], which speaks to its server.
//!
//! `flatbed_rows` has the claims, `flatbed_checkpoints` the jobs' checkpoints.

pub mod dialect;
pub mod fit;
pub mod steps;

use std::sync::Arc;

use flatbed_clock::Clock;

use super::{Delivery, DeliveryError, Target};
use crate::checkpoint::Checkpoint;
use crate::difference::Claim;
use crate::failure::Failure;
use crate::mapping::Table;
use crate::memory::Charge;
use dialect::{Dialect, definition};
use fit::{DatabaseTable, is_replaceable, misfit, missing};
use steps::{Step, steps, with_children};

/// The table of claims.
pub const ROWS: &str = "flatbed_rows";

/// The most claims of the documents of a batch. A batch with more is split.
pub const CLAIMS_MAX: usize = 200_000;

/// The most bytes of those claims, including the ids of the documents.
pub const CLAIMS_BYTES_MAX: usize = 32 << 20;

/// The table of checkpoints.
pub const CHECKPOINTS: &str = "flatbed_checkpoints";

/// A batch, prepared for a driver.
#[derive(Debug)]
pub struct Batch {
    /// The id of the job.
    pub job: String,
    /// The tables of the mapping.
    pub tables: Arc<Vec<Table>>,
    /// The target's definition of each table.
    pub found: Arc<Vec<DatabaseTable>>,
    /// The deliveries.
    pub deliveries: Arc<Vec<Delivery>>,
    /// The operations, in their order.
    pub steps: Vec<Step>,
    /// The time for soft deletes, as ISO 8601 in UTC.
    pub now: String,
    /// The memory of the batch.
    pub room: Option<Arc<Charge>>,
}

/// The parameters of a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenParameters {
    /// The id of the job.
    pub job: String,
    /// The epoch of this process. A higher one in the target means that another process has taken over the job.
    pub epoch: i64,
    /// The new checkpoint; `None`: unchanged.
    pub checkpoint: Option<String>,
    /// The documents whose claims are read.
    pub documents: Vec<String>,
    /// The collector of these claims.
    pub claims: Claims,
}

/// Claims with their documents, collected up to a limit and one beyond.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claims {
    all: Vec<(String, Claim)>,
    bytes: usize,
    count_max: usize,
    bytes_max: usize,
}

impl Claims {
    /// Creates a collector with limits.
    pub fn within(count_max: usize, bytes_max: usize) -> Claims {
        Claims { all: Vec::new(), bytes: 0, count_max, bytes_max }
    }

    /// Adds a claim. False: the limits are exceeded, and the driver must stop reading.
    #[must_use]
    pub fn take(&mut self, document: String, claim: Claim) -> bool {
        self.bytes += document.len() + claim.table.len() + claim.key.len();
        self.all.push((document, claim));
        self.is_within()
    }

    /// Returns the number of claims.
    pub fn count(&self) -> usize {
        self.all.len()
    }

    fn is_within(&self) -> bool {
        self.all.len() <= self.count_max && self.bytes <= self.bytes_max
    }

    /// Returns all claims. `None`: the limits are exceeded.
    pub fn all(self) -> Option<Vec<(String, Claim)>> {
        self.is_within().then_some(self.all)
    }
}

/// A database connection of one kind. Each wait has a timeout, after which the connection is closed.
pub trait Driver: Send {
    /// Returns the dialect.
    fn dialect(&self) -> &'static Dialect;

    /// Connects unless connected, and returns whether it did. Knowledge of the tables then is stale.
    fn connect(&mut self) -> impl Future<Output = Result<bool, DeliveryError>> + Send;

    /// Returns the definition of a table. `None`: the table does not exist.
    fn look(&mut self, table: String) -> impl Future<Output = Result<Option<DatabaseTable>, DeliveryError>> + Send;

    /// Creates tables.
    fn make(&mut self, statements: Vec<String>) -> impl Future<Output = Result<(), DeliveryError>> + Send;

    /// Returns whether a job has claims in a table.
    fn has_claims(&mut self, job: String, table: String) -> impl Future<Output = Result<bool, DeliveryError>> + Send;

    /// Raises a job's epoch and returns its checkpoint, as an empty text if there is none. `None`: the stored epoch is
    /// higher.
    fn take_over(
        &mut self,
        job: String,
        epoch: i64,
    ) -> impl Future<Output = Result<Option<String>, DeliveryError>> + Send;

    /// Begins a transaction, writes the checkpoint, and returns the documents' claims. `None`: another process has the
    /// job, and no transaction is open.
    ///
    /// # Errors
    /// [`DeliveryError`]; no transaction is open then.
    fn open(&mut self, opening: OpenParameters) -> impl Future<Output = Result<Option<Claims>, DeliveryError>> + Send;

    /// Executes a batch and commits.
    ///
    /// # Errors
    /// [`DeliveryError`]; the transaction is rolled back, or, if the connection was lost, may have been committed.
    fn close(&mut self, batch: Arc<Batch>) -> impl Future<Output = Result<(), DeliveryError>> + Send;

    /// Rolls back an open transaction.
    fn abandon(&mut self) -> impl Future<Output = ()> + Send;
}

/// The tables of a job in a database.
#[derive(Debug)]
pub struct Tables<D> {
    driver: D,
    job: String,
    tables: Arc<Vec<Table>>,
    is_to_create: bool,
    epoch: i64,
    /// The database's definitions of the tables; `None`: not read since the connection was made.
    found: Option<Arc<Vec<DatabaseTable>>>,
    room: Option<Arc<Charge>>,
    clock: Clock,
}

impl<D: Driver> Tables<D> {
    /// Creates a target without connecting. `is_to_create`: tables that are missing when a run begins are created.
    pub fn new(driver: D, job: &str, tables: &[Table], is_to_create: bool) -> Tables<D> {
        let tables = Arc::new(tables.to_vec());
        let (job, clock) = (job.to_owned(), Clock::default());
        Tables { driver, job, tables, is_to_create, epoch: 0, found: None, room: None, clock }
    }

    /// Replaces the system clock.
    #[must_use]
    pub fn with_clock(self, clock: Clock) -> Tables<D> {
        Tables { clock, ..self }
    }

    /// Returns the driver.
    pub fn driver(&mut self) -> &mut D {
        &mut self.driver
    }

    /// Connects, and checks the tables after a new connection. Tables are created only when a run begins: a table that
    /// is dropped later counts as an outage, rather than being created again without its rows.
    async fn ready(&mut self, is_beginning: bool) -> Result<Arc<Vec<DatabaseTable>>, DeliveryError> {
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
                    Some(DatabaseTable { engine: Some(engine), .. }) => {
                        let error = format!("the table {name}: its engine {engine} has no transactions");
                        return Err(DeliveryError::Unfit(error));
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
                    return Err(DeliveryError::failed(Failure::Sql(*b"42P01"), error));
                }
                self.driver.make(definition(dialect, table, &self.tables)).await?;
                found = self.driver.look(table.name.clone()).await?;
            }
            let gone = |state: &[u8; 5], what: String| Err(DeliveryError::failed(Failure::Sql(*state), what));
            let Some(found) = found else {
                return gone(b"42P01", format!("there is no such table: {}", table.name));
            };
            if let Some(column) = missing(table, &found) {
                return gone(b"42703", format!("the table {} has no column {column}", table.name));
            }
            if let Some(misfit) = misfit(table, &found) {
                return Err(DeliveryError::Unfit(format!("the table {}: {misfit}", table.name)));
            }
            all.push(found);
        }
        let found = Arc::new(all);
        self.found = Some(found.clone());
        Ok(found)
    }

    async fn attempt(
        &mut self,
        found: &Arc<Vec<DatabaseTable>>,
        deliveries: &Arc<Vec<Delivery>>,
        checkpoint: Option<&Checkpoint>,
        replaced: &[bool],
        is_with_children: bool,
    ) -> Result<(), DeliveryError> {
        let opening = OpenParameters {
            job: self.job.clone(),
            epoch: self.epoch,
            checkpoint: checkpoint.map(|checkpoint| String::from_utf8(checkpoint.write(None)).unwrap_or_default()),
            documents: deliveries.iter().map(|delivery| delivery.id.clone()).collect(),
            claims: Claims::within(CLAIMS_MAX, CLAIMS_BYTES_MAX),
        };
        let claims = self.driver.open(opening).await?.ok_or(DeliveryError::Superseded)?;
        let Some(before) = claims.all() else {
            self.driver.abandon().await;
            return Err(DeliveryError::failed(Failure::TooLarge, "the documents of the batch have too many rows"));
        };
        let mut steps = steps(&self.tables, deliveries, &before, replaced);
        if is_with_children {
            steps = with_children(&self.tables, steps);
        }
        let (tables, found, deliveries) = (self.tables.clone(), found.clone(), deliveries.clone());
        let (job, now, room) = (self.job.clone(), crate::time::now(&self.clock).to_string(), self.room.clone());
        self.driver.close(Arc::new(Batch { job, tables, found, deliveries, steps, now, room })).await
    }

    async fn take_in(&mut self, batch: Vec<Delivery>, checkpoint: Option<Checkpoint>) -> Result<(), DeliveryError> {
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
        // Documents may exchange the values of a unique key. Deleting rows before inserting others resolves this, for
        // tables whose rows lose nothing by it.
        let replaced = is_replaceable(&self.tables, &found);
        if !replaced.contains(&true) {
            return Err(refused);
        }
        match self.attempt(&found, &deliveries, checkpoint.as_ref(), &replaced, false).await {
            // The first failure names the cause.
            Err(again) if again.is_poison() => Err(refused),
            done => done,
        }
    }
}

impl<D: Driver> Target for Tables<D> {
    fn keeps_checkpoint(&self) -> bool {
        true
    }

    async fn begin(&mut self, epoch: u64) -> Result<Option<Checkpoint>, DeliveryError> {
        self.ready(true).await?;
        self.epoch = i64::try_from(epoch).unwrap_or(i64::MAX);
        let text = self.driver.take_over(self.job.clone(), self.epoch).await?.ok_or(DeliveryError::Superseded)?;
        Ok(Checkpoint::read(text.as_bytes()))
    }

    fn hold(&mut self, room: Arc<Charge>) {
        self.room = Some(room);
    }

    async fn deliver(&mut self, batch: Vec<Delivery>, checkpoint: Option<Checkpoint>) -> Result<(), DeliveryError> {
        let done = self.take_in(batch, checkpoint).await;
        self.room = None;
        done
    }
}
