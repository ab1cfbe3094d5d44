// Recordings that answers.test.mjs replays, and their answers that Flatbed gives otherwise: by scenario a reason for each
// step, or one for the scenario where all of it is for later.
const denormal = '5e-324 comes back as written, where CouchDB reads 0';
const throughout = 'a reduction that cannot be made fails the queries that ask for it, and no others of its design document';
const together = 'perhaps: rows are put together otherwise, so that sizes are those of other calls';
const once = 'what is one is not reduced again';
const newer = 'the engine knows newer forms of JavaScript';
const pieces = 'perhaps: the value that the reason names may be what some rows were reduced to';
const early = 'perhaps: rows may be there before anyone asks';
const untagged = 'headers: lists of databases have no tag, which would be made of all of them, and some come in one piece';
const members = 'members of _users read it document by document';
const said = 'what is wrong with a security object is said, and it is no error of the server';
const refused = 'what is refused for lack of rights is 401 or 403 everywhere, and no error of the server';
const malformed = 'a body of another form is no error of the server';
const thrown = 'an error that a validation throws is said in full';
const text = 'a reason that is no string is given as its text';
const nodes = 'there are no shards';
const local = 'a database of this server has a name, and no address; that it is missing is 404';
const kept = 'a document that makes no replication is kept, and _scheduler/docs says why';
const sessions = 'sessions are not there yet';

export const differences = {
  documents: {
    'write and read': { 18: 'local_seq is a sequence here, as everywhere else, and not a count of edits' },
    'numbers and order': { 2: '-0.0 and 5e-324 come back as written' },
  },
  revisions: {},
  queries: {
    views: { 25: 'perhaps: waiting_commit is of what CouchDB is about to write' },
    sessions,
  },
  mango: {
    'arrays, strings and numbers': { 48: '$mod by 0 is refused at once, where CouchDB fails at the first number' },
    pages: { 12: 'of a bookmark that is not selected any more CouchDB loses the next row' },
    warnings: { 5: '$in reads two ranges, where CouchDB reads the whole index' },
    'indexed rows': {},
  },
  views: {
    'rows that a map emits': {},
    'rows as text': { 2: denormal, 4: denormal, 7: denormal, 11: denormal },
    ranges: {},
    'parameters that are refused': {},
    'posted parameters': {},
    'several queries at once': { 9: 'a query that is no object is refused in words' },
    'order of all kinds of keys': {},
    'tricky strings sorted': {},
    'documents and joins in rows': {},
    'conflicts in views': {},
    grouping: {},
    sums: {},
    'sums that cannot be': { 1: 'an object and a number are as other values that cannot be added', 2: 'an object and a number are as other values that cannot be added' },
    'suffixed and unknown built-in reduces': {},
    'counts and statistics': {},
    'statistics that cannot be': { 1: 'the reason in words', 6: pieces, 8: throughout, 9: throughout, 10: throughout, 11: throughout },
    'other built-in reduces': {},
    'written reduces': {},
    'a reduce that does not shrink': { 1: together, 4: once, 5: once, 6: together, 7: together },
    freshness: { 2: early, 3: early, 4: early, 7: early, 8: early, 9: early },
    'changed and deleted documents': {},
    'maps that throw': {},
    'design documents that are refused': {},
    'libraries in maps': { 7: 'a library that fails to load fails for every document' },
    'functions that maps have': { 3: 'there is no Intl' },
    'forms of map source': { 12: 'the reason in other words', 18: newer, 19: newer, 20: newer },
    'options of design documents': { 7: 'local_seq is a sequence here, as everywhere else', 12: 'local_seq is a sequence here, as everywhere else' },
    'information, compaction and clean-up': {},
    'tags of answers': { 9: 'documents of one bulk are changed in the order in which they come' },
    'all documents as a view': {},
    'design and local documents listed': { 7: 'offset counts design documents alone' },
    'views in the mango language': {},
    partitioned: {},
    shows: {
      8: 'the server that is asked has no administrators: who asks has no name',
      9: 'the server that is asked has no administrators: who asks has no name',
      22: 'the engine says in its own words why a text is no function',
    },
    lists: {},
    updates: {},
    rewrites: {},
    'an answer that breaks off (a server may refuse the whole)': { 2: 'all queries are looked at before the answer begins' },
    'one key often from one document': {},
  },
  users: {
    'user documents as the server comes: only administrators see them': { 13: 'the rules for user documents are built in: there is no _design/_auth' },
    'user documents where anyone may make one': {
      0: 'a setting that was not set has its default',
      14: members, 26: members, 29: members, 30: members, 31: members,
    },
    'user documents that are refused': {},
    sessions: { 15: malformed, 21: malformed },
    'security objects': {
      8: refused, 9: refused, 14: said, 15: said, 17: said, 18: said, 19: said, 20: said, 21: said, 22: said, 23: said,
    },
    'who may do what: an outsider, a member, an administrator of the database': { 43: refused, 51: refused, 59: refused, 61: nodes, 62: nodes },
    'databases without members': {},
    'validation knows the user': { 10: thrown, 11: thrown, 12: thrown, 13: text, 14: text, 15: 'the first of both counts' },
    'two validations, and what they see': { 10: 'the engine says in its own words why a text is no function' },
    'the server as an ordinary user': { 18: local, 37: '_stats is there, for administrators' },
    configuration: {},
    'a server that wants a user': {},
    'lists of databases': {
      2: untagged, 3: untagged, 4: untagged, 5: untagged, 6: untagged, 7: untagged, 8: untagged, 9: untagged,
      13: untagged, 14: untagged, 18: untagged, 19: untagged, 20: untagged, 22: untagged,
    },
    'replication requests that are refused': {
      0: malformed, 1: malformed, 2: malformed, 4: local,
      7: 'another method is 405 everywhere', 9: kept, 10: kept, 11: kept, 12: kept,
    },
  },
};
