"""Tenants, as a cluster answers that has them disabled."""

import unittest

import fdb
import fdb.tenant_management as management

from support import IS_CLUSTER, DatabaseTest

NAME = b"test-bindings"


@unittest.skipIf(IS_CLUSTER, "a cluster may have tenants")
class Tenants(DatabaseTest):
    def test_one_opens_and_is_not_found_when_it_is_used(self):
        tenant = self.db.open_tenant(NAME)
        self.assert_error(2131, tenant.get_id)
        tr = tenant.create_transaction()
        self.assertGreater(tr.get_read_version().wait(), 0)
        self.assert_error(2131, tr.get, b"a")
        self.assert_error(2131, lambda: list(tr.get_range(b"a", b"b")))
        self.assert_error(2131, tr.get_key, fdb.KeySelector.first_greater_than(b"a"))
        self.assert_error(2131, tr.watch, b"a")
        tr[b"a"] = b"1"
        self.assert_error(2131, tr.commit)
        self.assert_error(2131, tr.on_error, 2131)
        self.assert_error(2131, lambda: tenant[b"a"])

    def test_none_can_be_made(self):
        self.assert_error(2136, management.create_tenant, self.db, NAME)
        self.assert_error(2131, management.delete_tenant, self.db, NAME)
        self.assertEqual(management.list_tenants(self.db, b"", b"\xff", 0).to_list(), [])


if __name__ == "__main__":
    unittest.main()
