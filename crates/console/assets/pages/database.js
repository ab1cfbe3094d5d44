// What all pages of a database share.
import { head, plain, shown, tabs, to } from '../parts.js';

const PARTS = [['Documents', ''], ['Changes', 'changes'], ['Query', 'query'], ['Indexes and views', 'indexes'], ['Access', 'access']];

/** The head of one of its pages; `current` as in the address. */
export const databaseHead = (database, current, ...actions) => [
  head([['Databases', '#/']], shown(database), ...actions),
  tabs(`Parts of ${plain(database, 60)}`, PARTS.map(([label, part]) => [label, part ? to('db', database, part) : to('db', database), part === current])),
];

/** The head of what lies in it. */
export const headIn = (database, title, ...actions) => head([['Databases', '#/'], [shown(database, 80), to('db', database)]], title, ...actions);
