// Tests of PouchDB's suites that fail with Flatbed as the remote, by suite: full title and reason.
export const failures = {
  find: {},
  mapreduce: {},
};
