// What is answered differently from Sync Gateway on purpose: of each reason the scenarios, with the places of their steps. The reasons are
// those of docs/sync-gateway.md, "Differences from Sync Gateway".
const reasons = [
  ['who may not see a document may not learn that there is one: 404 as if it never was, `_removed` for what the feed told of alone', {
    'default sync function: the channels property': [14, 16, 17, 18],
    'the ! channel is everyone\'s, a document in * is everyone\'s': [9, 10, 11],
    'access() gives a user a channel': [4, 10, 18, 23],
    'access() to a role reaches its members': [4, 10],
    'role() puts a user in a role': [4, 19],
    'a user needs no channel of a document to write it': [3, 6],
    'a document that leaves a channel': [11, 15, 19],
    'deletions in the feed': [12],
    'style=all_docs and conflicts': [7],
    'access given by a document and taken away by its edit': [9],
    'the same channel from two documents: taking one away changes nothing': [12],
    'channels through roles: given with the role, the role\'s channels changed, the role taken away, the role deleted': [14, 18],
    'a document the user cannot see: every way of asking': [3, 4, 5, 7, 8, 9, 10, 11, 12, 13, 14, 20, 21, 22, 23, 29, 30],
    'writing: the statuses': [24],
    '_bulk_get: its forms': [9],
    '_all_docs as a user': [20],
    'conflicts: channels follow the winning revision': [6, 11, 12, 19],
    'deleting, and writing again over a deletion': [3],
    'guest: disabled until it is given a configuration': [7],
    'the tombstone of a conflict': [7],
    'attachments as a user': [11, 26],
    '_resync: a new sync function takes hold of old documents': [21],
    'a channel given twice: by the administrator and by a document': [11],
    'a document that gives a user the channel that it is itself in': [6, 7, 8],
    'who writes is not who reads: a drop box': [3, 4],
    'a validation of the old document\'s fields': [11],
  }],
  ['the function is asked before a conflict is found, for the same reason', {
    'requireAdmin': [3],
    'a rejected write changes nothing': [6],
  }],
  ['the function sees the revision below an edit as its `_rev`, as `validate_doc_update` does, or none: the new one is made in the transaction', {
    'oldDoc: null at creation, the stored body (without its _rev) at an update': [0, 2, 4, 5, 7, 8, 10],
    'the sync function sees a deletion as _deleted with the old document': [4, 5],
  }],
  ['the function has a third argument; roles have no `Sequence`', {
    'the helper functions and the language of a sync function': [5, 7],
  }],
  ['`!` is had since ever', {
    'the ! channel is everyone\'s, a document in * is everyone\'s': [13],
    'a user with the * channel sees everything': [11],
    'access() gives a user a channel': [8],
    'guest in the database\'s configuration': [0],
    'a user and a role in the database\'s configuration': [1],
    'sessions: made with a name and a password': [1, 2, 12, 13],
    'sessions: made by the admin port': [10, 11],
    'the admin port asks for no credentials and takes none amiss': [4],
    'a channel given twice: by the administrator and by a document': [10],
    'an edit that keeps its grant does not start the channel again': [4, 6],
  }],
  ['local documents are per user', {
    '_local documents are not kept apart by user': [5, 6, 9, 12, 13, 14],
  }],
  ['digests of attachments are MD5, which CouchDB\'s port shows, too; what is compressed has no ranges', {
    'include_docs': [3, 4, 5],
    'a document the user cannot see: every way of asking': [17],
    '_bulk_get: its forms': [6, 7, 8],
    'attachments as a user': [3, 4, 5, 6, 7, 8, 9, 13, 17, 19, 20, 22, 27, 28, 29],
  }],
  ['ids of revisions are CouchDB\'s, and of attachments, too', {
    'the revision id depends on the body, its parent and whether it deletes, not on the id, the attachments or the time it expires': [3, 8],
  }],
  ['a digest alone does not stand for data: who knows it may not have what it is of', {
    'attachments as a user': [21, 23],
  }],
  ['a document comes once, wherever it is, with its newest change', {
    'default sync function: which channel names are valid': [12],
    'a user with the * channel sees everything': [8, 10],
    'channel() called with strings, arrays, several arguments and nonsense': [17],
    'a document that leaves a channel': [18],
    'filter by document ids': [12],
    'backfill: a channel given later brings its older documents under the grant\'s sequence': [7, 9],
    'the same document visible through a user\'s channel and through a role\'s': [8, 9],
  }],
  ['the first of two grants goes: the thing is held as before, and nothing is replayed', {
    'the same channel from two documents: taking one away changes nothing': [5, 8, 9, 10, 13],
    'a channel given twice: by the administrator and by a document': [3, 6, 8],
  }],
  ['`_raw` shows what is kept here, not how a bucket keeps it', {
    'default sync function: the channels property': [24],
    'default sync function: which channel names are valid': [13, 14, 15],
    'the sync function sees a deletion as _deleted with the old document': [10],
    'access() gives a user a channel': [24],
    'a rejected write changes nothing': [7],
    'a document that leaves a channel': [24],
    'deletions in the feed': [20],
    'the body of a superseded revision can be had until it is compacted': [8],
    'conflicts: channels follow the winning revision': [15, 25],
    '_raw': [2, 4, 5],
  }],
  ['places are opaque texts, and no numbers', {
    'the feed of one user: her channels, her own user row, the order': [16],
    'since and other parameters that are wrong': [5, 6, 7, 8, 9, 10, 12],
  }],
  ['a new function holds at once, and brings documents to their channels in the background, with fresh sequences, while the database is in use', {
    '_resync must wait for _offline': [1, 3],
    '_resync: a new sync function takes hold of old documents': [6, 11, 12, 13, 15, 19, 23],
  }],
  ['a configuration tells what is heeded, and holds at once', {
    '_config': [0, 2, 4],
  }],
  ['names and ids stand in the order of their bytes or of keys', {
    'users: POST and the name': [16],
    'compressed and odd requests': [10],
  }],
  ['the guest has `!` from when it is enabled', {
    'guest: disabled until it is given a configuration': [5, 6, 8],
  }],
  ['grants that mean nothing are not kept', {
    'access() with odd arguments': [15],
    'role() puts a user in a role': [20],
  }],
  ['what is no function is refused when it is set', {
    'making and removing databases': [12, 13, 16],
  }],
  ['reasons that quote a parser are our own', {
    '_bulk_docs where some are refused': [2],
    'expiry() in the sync function and _exp in the body': [7],
  }],
  ['a tombstone in no channel of the reader\'s is shown as removed, as the feed told', {
    'deletions in the feed': [13, 15],
  }],
  ['missing revisions stand first in `open_revs`', {
    'a document that leaves a channel': [14],
    'reading: one document in its forms': [10],
  }],
  ['`If-None-Match` is answered as HTTP has it', {
    'reading: one document in its forms': [20],
  }],
  ['grants of a purged document fall', {
    'a purged document\'s grants': [5],
  }],
  ['the cookie of a session is kept from scripts and from other sites\' forms', {
    'a session in use is prolonged once a tenth of its time has passed': [4],
  }],
  ['sessions of a disabled user are not made and do not revive', {
    'disabled users, and users without a password': [6, 10],
  }],
  ['there is no bucket to be emptied, and no index of one to be shown', {
    'other admin requests': [4, 5, 6],
  }],
  ['design documents are CouchDB\'s port\'s', {
    'the database\'s own answers for a user': [5, 10],
  }],
  ['no member of a body begins with an underscore: `_exp: null` is not kept', {
    'expiry() in the sync function and _exp in the body': [15],
  }],
  ['what of a configuration would change what a database does, and is not heeded, is refused rather than passed over', {
    'users with an empty password where that is allowed': 'all',
    'send_www_authenticate_header off': 'all',
    'a session belongs to its database, and its cookie\'s name can be set': 'all',
    'a conflict that is refused where conflicts are off': 'all',
  }],
  ['an edit of a document that stands twice in a request is committed behind the others', {
    '_bulk_docs where some are refused': [8],
  }],
  ['`HEAD` of a feed is as `GET` without its rows', {
    'the feed of one user: her channels, her own user row, the order': [17],
  }],
];

/** By scenario, why its database is not made. */
export const refused = {};

/** By scenario, by the place of the step, why. */
export const differences = {};
for (const [reason, scenarios] of reasons) {
  for (const [name, places] of Object.entries(scenarios)) {
    if (places === 'all') {
      refused[name] = reason;
      continue;
    }
    for (const place of places) (differences[name] ??= {})[place] = reason;
  }
}
