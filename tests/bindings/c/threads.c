/*
 * What a C program may do with futures and threads, on the databases of the cluster files that are its arguments (one or
 * two). Ends with status 0, or says what did not hold. It allocates and shares as a binding does, so that it is also
 * what the checkers of memory and threads run (`make memcheck`, `make sanitize`).
 *
 *     threads [--rounds N] CLUSTER_FILE [CLUSTER_FILE]
 */

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fdb.h"

#define KEYS "test-bindings-c/"
#define KEYS_END "test-bindings-c0"
#define THREADS 4

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                                            \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

#define OK(call)                                                                                                       \
    do {                                                                                                               \
        fdb_error_t code_ = (call);                                                                                    \
        if (code_ != 0) {                                                                                              \
            fprintf(stderr, "%s:%d: %s: %s (%d)\n", __FILE__, __LINE__, #call, fdb_get_error(code_), code_);           \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

_Static_assert(sizeof(FDBKeyValue) == 24, "packed to 4 bytes");

static int rounds = 50;
static FDBDatabase *databases[2];
static pthread_t network_thread;

static const uint8_t *bytes(const char *text) { return (const uint8_t *)text; }

static FDBTransaction *begin(FDBDatabase *database) {
    FDBTransaction *transaction;
    OK(fdb_database_create_transaction(database, &transaction));
    return transaction;
}

static void set(FDBTransaction *transaction, const char *key, const void *value, size_t length) {
    fdb_transaction_set(transaction, bytes(key), (int)strlen(key), value, (int)length);
}

static FDBFuture *get(FDBTransaction *transaction, const char *key) {
    return fdb_transaction_get(transaction, bytes(key), (int)strlen(key), 0);
}

static FDBFuture *watch(FDBTransaction *transaction, const char *key) {
    return fdb_transaction_watch(transaction, bytes(key), (int)strlen(key));
}

static fdb_error_t wait_for(FDBFuture *future) {
    OK(fdb_future_block_until_ready(future));
    return fdb_future_get_error(future);
}

/* Waits for a future and gives it up. */
static fdb_error_t finish(FDBFuture *future) {
    fdb_error_t error = wait_for(future);
    fdb_future_destroy(future);
    return error;
}

static void write_value(FDBDatabase *database, const char *key, uint64_t value) {
    FDBTransaction *transaction = begin(database);
    fdb_error_t error;
    do {
        set(transaction, key, &value, sizeof value);
        error = finish(fdb_transaction_commit(transaction));
    } while (error != 0 && finish(fdb_transaction_on_error(transaction, error)) == 0);
    CHECK(error == 0);
    fdb_transaction_destroy(transaction);
}

/* The value of a key as a number, 0 for none. */
static fdb_error_t read_value(FDBTransaction *transaction, const char *key, uint64_t *out) {
    FDBFuture *future = get(transaction, key);
    fdb_error_t error = wait_for(future);
    if (error == 0) {
        fdb_bool_t present;
        const uint8_t *value;
        int length;
        OK(fdb_future_get_value(future, &present, &value, &length));
        CHECK(!present || length == sizeof *out);
        *out = 0;
        if (present) memcpy(out, value, sizeof *out);
    }
    fdb_future_destroy(future);
    return error;
}

/* Starts threads that all run the same, and waits for them. */
static void run_threads(int count, void *(*body)(void *), void *parameter) {
    pthread_t threads[16];
    CHECK(count <= 16);
    for (int at = 0; at < count; at++) CHECK(pthread_create(&threads[at], NULL, body, parameter) == 0);
    for (int at = 0; at < count; at++) CHECK(pthread_join(threads[at], NULL) == 0);
}

/* -- Retry loops -- */

static void *increment(void *database) {
    for (int round = 0; round < rounds; round++) {
        FDBTransaction *transaction = begin(database);
        for (;;) {
            uint64_t count;
            fdb_error_t error = read_value(transaction, KEYS "count", &count);
            if (error == 0) {
                count++;
                set(transaction, KEYS "count", &count, sizeof count);
                error = finish(fdb_transaction_commit(transaction));
            }
            if (error == 0) break;
            CHECK(fdb_error_predicate(50000, error));
            OK(finish(fdb_transaction_on_error(transaction, error)));
        }
        fdb_transaction_destroy(transaction);
    }
    return NULL;
}

static void increments_of_many_threads_are_all_counted(void) {
    for (int at = 0; at < 2; at++) {
        write_value(databases[at], KEYS "count", 0);
        run_threads(THREADS, increment, databases[at]);
        FDBTransaction *transaction = begin(databases[at]);
        uint64_t count;
        OK(read_value(transaction, KEYS "count", &count));
        CHECK(count == (uint64_t)THREADS * rounds);
        fdb_transaction_destroy(transaction);
    }
}

/* -- Callbacks -- */

struct calls {
    /* The one thread besides the network's that a callback may come from, if `has_caller`; else any may. */
    pthread_t caller;
    int has_caller;
    _Atomic int on_caller, on_network, elsewhere;
};

static void count_call(FDBFuture *future, void *parameter) {
    struct calls *calls = parameter;
    CHECK(fdb_future_is_ready(future));
    if (pthread_equal(pthread_self(), network_thread))
        calls->on_network++;
    else if (calls->has_caller && pthread_equal(pthread_self(), calls->caller))
        calls->on_caller++;
    else {
        CHECK(!calls->has_caller);
        calls->elsewhere++;
    }
}

static void count_call_and_destroy(FDBFuture *future, void *parameter) {
    count_call(future, parameter);
    fdb_future_destroy(future);
}

static void callbacks_come_once_and_from_the_right_thread(void) {
    struct calls calls = {.caller = pthread_self(), .has_caller = 1};
    int expected = 0;
    for (int round = 0; round < rounds; round++) {
        FDBTransaction *transaction = begin(databases[round % 2]);
        set(transaction, KEYS "callback", &round, sizeof round);
        FDBFuture *commit = fdb_transaction_commit(transaction);
        /* Two callbacks of one future, the first set while it is under way or when it is done. */
        OK(fdb_future_set_callback(commit, count_call, &calls));
        OK(wait_for(commit));
        OK(fdb_future_set_callback(commit, count_call, &calls));
        fdb_future_destroy(commit);
        fdb_transaction_destroy(transaction);

        /* A callback that gives its future up, whoever comes first. */
        transaction = begin(databases[round % 2]);
        set(transaction, KEYS "callback", &round, sizeof round);
        OK(fdb_future_set_callback(fdb_transaction_commit(transaction), count_call_and_destroy, &calls));
        OK(fdb_future_set_callback(get(transaction, KEYS "none"), count_call_and_destroy, &calls));
        fdb_transaction_destroy(transaction);
        expected += 4;
    }
    while (calls.on_caller + calls.on_network < expected) sched_yield();
    /* A last turn of the network thread, for one that would come twice. */
    FDBTransaction *transaction = begin(databases[0]);
    FDBFuture *last = watch(transaction, KEYS "callback");
    OK(finish(fdb_transaction_commit(transaction)));
    OK(fdb_future_set_callback(last, count_call, &calls));
    fdb_future_cancel(last);
    while (calls.on_caller + calls.on_network < expected + 1) sched_yield();
    CHECK(calls.on_caller + calls.on_network == expected + 1);
    /* Those that were set when the commit was done came at once. */
    CHECK(calls.on_caller >= rounds);
    fdb_future_destroy(last);
    fdb_transaction_destroy(transaction);
}

/* -- One future, many threads -- */

struct shared {
    FDBFuture *future;
    struct calls calls;
    pthread_barrier_t start;
    _Atomic int next_role;
    _Atomic int fired, cancelled;
};

static void *use_shared(void *parameter) {
    struct shared *shared = parameter;
    int role = shared->next_role++;
    pthread_barrier_wait(&shared->start);
    if (role == 0) fdb_future_cancel(shared->future);
    if (role == 1) write_value(databases[0], KEYS "shared", (uint64_t)rand());
    if (role == 2) OK(fdb_future_set_callback(shared->future, count_call, &shared->calls));
    fdb_error_t error = wait_for(shared->future);
    CHECK(error == 0 || error == 1101);
    if (error == 0)
        shared->fired++;
    else
        shared->cancelled++;
    return NULL;
}

static void a_watch_is_waited_for_cancelled_and_fired_by_many_threads(void) {
    for (int round = 0; round < rounds; round++) {
        struct shared shared = {.calls = {.has_caller = 0}};
        CHECK(pthread_barrier_init(&shared.start, NULL, THREADS + 1) == 0);
        FDBTransaction *transaction = begin(databases[0]);
        shared.future = watch(transaction, KEYS "shared");
        OK(finish(fdb_transaction_commit(transaction)));
        run_threads(THREADS + 1, use_shared, &shared);
        /* All saw the same end. */
        CHECK(shared.fired == THREADS + 1 || shared.cancelled == THREADS + 1);
        while (shared.calls.on_caller + shared.calls.on_network + shared.calls.elsewhere == 0) sched_yield();
        fdb_future_destroy(shared.future);
        fdb_transaction_destroy(transaction);
        CHECK(pthread_barrier_destroy(&shared.start) == 0);
    }
}

struct handed_over {
    FDBFuture *future;
    struct calls calls;
};

static void *destroy_future(void *parameter) {
    struct handed_over *handed_over = parameter;
    fdb_future_destroy(handed_over->future);
    return NULL;
}

static void futures_are_destroyed_elsewhere_while_they_become_ready(void) {
    for (int round = 0; round < rounds; round++) {
        FDBTransaction *transaction = begin(databases[round % 2]);
        struct handed_over commit = {.calls = {.caller = pthread_self(), .has_caller = 1}};
        struct handed_over stamp = {.calls = {.caller = pthread_self(), .has_caller = 1}};
        set(transaction, KEYS "destroyed", &round, sizeof round);
        stamp.future = fdb_transaction_get_versionstamp(transaction);
        commit.future = fdb_transaction_commit(transaction);
        OK(fdb_future_set_callback(commit.future, count_call, &commit.calls));
        pthread_t threads[2];
        CHECK(pthread_create(&threads[0], NULL, destroy_future, &commit) == 0);
        CHECK(pthread_create(&threads[1], NULL, destroy_future, &stamp) == 0);
        fdb_transaction_destroy(transaction);
        CHECK(pthread_join(threads[0], NULL) == 0 && pthread_join(threads[1], NULL) == 0);
        while (commit.calls.on_caller + commit.calls.on_network == 0) sched_yield();
    }
}

/* -- One transaction, many threads -- */

static void *read_with_one_transaction(void *transaction) {
    for (int round = 0; round < rounds; round++) {
        uint64_t value;
        fdb_error_t error = read_value(transaction, KEYS "many", &value);
        CHECK(error == 0 || error == 1025);
        if (error == 0) CHECK(value == 7);
    }
    return NULL;
}

static void one_transaction_is_read_by_many_threads_and_cancelled(void) {
    write_value(databases[0], KEYS "many", 7);
    FDBTransaction *transaction = begin(databases[0]);
    pthread_t reader;
    CHECK(pthread_create(&reader, NULL, read_with_one_transaction, transaction) == 0);
    run_threads(THREADS - 1, read_with_one_transaction, transaction);
    fdb_transaction_cancel(transaction);
    CHECK(pthread_join(reader, NULL) == 0);
    CHECK(finish(get(transaction, KEYS "many")) == 1025);
    fdb_transaction_reset(transaction);
    OK(finish(get(transaction, KEYS "many")));
    fdb_transaction_destroy(transaction);
}

/* -- Memory that is handed out -- */

struct reader {
    FDBFuture *future;
    int expected_count;
};

static void *look_at_pairs(void *parameter) {
    struct reader *reader = parameter;
    const FDBKeyValue *pairs;
    int count;
    fdb_bool_t more;
    OK(fdb_future_get_keyvalue_array(reader->future, &pairs, &count, &more));
    CHECK(count == reader->expected_count);
    size_t sum = 0;
    for (int at = 0; at < count; at++) {
        CHECK(pairs[at].key != NULL && pairs[at].value != NULL);
        for (int byte = 0; byte < pairs[at].key_length; byte++) sum += pairs[at].key[byte];
        for (int byte = 0; byte < pairs[at].value_length; byte++) sum += pairs[at].value[byte];
    }
    CHECK(sum > 0);
    fdb_future_release_memory(reader->future);
    return NULL;
}

static void memory_lives_as_long_as_its_future(void) {
    FDBTransaction *transaction = begin(databases[0]);
    fdb_transaction_clear_range(transaction, bytes(KEYS "m/"), sizeof(KEYS "m/") - 1, bytes(KEYS "m0"),
                                sizeof(KEYS "m0") - 1);
    char long_value[100];
    memset(long_value, 'v', sizeof long_value);
    for (int at = 0; at < 100; at++) {
        char key[64];
        snprintf(key, sizeof key, KEYS "m/%03d", at);
        set(transaction, key, long_value, (size_t)at);
    }
    OK(finish(fdb_transaction_commit(transaction)));
    fdb_transaction_reset(transaction);
    FDBFuture *range =
        fdb_transaction_get_range(transaction, bytes(KEYS "m/"), sizeof(KEYS "m/") - 1, 0, 1, bytes(KEYS "m0"),
                                  sizeof(KEYS "m0") - 1, 0, 1, 0, 0, -2, 1, 0, 0);
    FDBFuture *empty = get(transaction, KEYS "m/000");
    FDBFuture *none = get(transaction, KEYS "none");
    FDBFuture *addresses = fdb_transaction_get_addresses_for_key(transaction, bytes(KEYS), sizeof(KEYS) - 1);
    FDBFuture *version = fdb_transaction_get_read_version(transaction);
    OK(wait_for(range));
    OK(wait_for(empty));
    OK(wait_for(none));
    OK(wait_for(addresses));
    OK(wait_for(version));
    fdb_transaction_destroy(transaction);

    const FDBKeyValue *pairs;
    int count, length;
    fdb_bool_t more, present;
    const uint8_t *value;
    OK(fdb_future_get_keyvalue_array(range, &pairs, &count, &more));
    CHECK(count == 100 && !more);
    for (int at = 0; at < count; at++) {
        char key[64];
        int key_length = snprintf(key, sizeof key, KEYS "m/%03d", at);
        CHECK(pairs[at].key_length == key_length && memcmp(pairs[at].key, key, (size_t)key_length) == 0);
        CHECK(pairs[at].value != NULL && pairs[at].value_length == at);
        CHECK(memcmp(pairs[at].value, long_value, (size_t)at) == 0);
    }
    /* Handed out by this thread and by each of the others, and released as often: then it is gone, and not before. */
    struct reader reader = {.future = range, .expected_count = 100};
    run_threads(THREADS, look_at_pairs, &reader);
    CHECK(pairs[99].value_length == 99 && pairs[99].value[98] == 'v');
    fdb_future_release_memory(range);
    CHECK(fdb_future_get_keyvalue_array(range, &pairs, &count, &more) == 1102);
    CHECK(fdb_future_get_error(range) == 1102);

    OK(fdb_future_get_value(empty, &present, &value, &length));
    CHECK(present && value != NULL && length == 0);
    OK(fdb_future_get_value(none, &present, &value, &length));
    CHECK(!present);
    const char **strings;
    OK(fdb_future_get_string_array(addresses, &strings, &count));
    for (int at = 0; at < count; at++) CHECK(strlen(strings[at]) > 0);
    int64_t number;
    OK(fdb_future_get_int64(version, &number));
    CHECK(number > 0);
    FDBFuture *all[] = {range, empty, none, addresses, version};
    for (size_t at = 0; at < sizeof all / sizeof *all; at++) fdb_future_destroy(all[at]);
}

/* -- The end -- */

static void count_hook(void *parameter) {
    CHECK(pthread_equal(pthread_self(), network_thread));
    ++*(_Atomic int *)parameter;
}

static void *run_network(void *parameter) {
    (void)parameter;
    OK(fdb_run_network());
    return NULL;
}

int main(int argc, char **argv) {
    int at = 1;
    if (argc > 2 && strcmp(argv[1], "--rounds") == 0) {
        rounds = atoi(argv[2]);
        at = 3;
    }
    if (at >= argc || rounds < 1) {
        fprintf(stderr, "usage: threads [--rounds N] CLUSTER_FILE [CLUSTER_FILE]\n");
        return 2;
    }
    OK(fdb_select_api_version_impl(FDB_API_VERSION, FDB_API_VERSION));
    CHECK(fdb_select_api_version_impl(FDB_API_VERSION, FDB_API_VERSION) == 2201);
    CHECK(fdb_run_network() == 2008 && fdb_stop_network() == 2008);
    OK(fdb_setup_network());
    CHECK(fdb_setup_network() == 2009);
    CHECK(pthread_create(&network_thread, NULL, run_network, NULL) == 0);
    _Atomic int hooks = 0;
    OK(fdb_add_network_thread_completion_hook(count_hook, &hooks));
    OK(fdb_add_network_thread_completion_hook(count_hook, &hooks));
    OK(fdb_create_database(argv[at], &databases[0]));
    OK(fdb_create_database(argv[at + 1 < argc ? at + 1 : at], &databases[1]));

    increments_of_many_threads_are_all_counted();
    callbacks_come_once_and_from_the_right_thread();
    a_watch_is_waited_for_cancelled_and_fired_by_many_threads();
    futures_are_destroyed_elsewhere_while_they_become_ready();
    one_transaction_is_read_by_many_threads_and_cancelled();
    memory_lives_as_long_as_its_future();
    double busyness = fdb_database_get_main_thread_busyness(databases[0]);
    CHECK(busyness >= 0);
    FDBFuture *status = fdb_database_get_client_status(databases[0]);
    const uint8_t *key;
    int length;
    OK(wait_for(status));
    OK(fdb_future_get_key(status, &key, &length));
    CHECK(length > 2 && key[0] == '{' && key[length - 1] == '}');
    fdb_future_destroy(status);

    FDBTransaction *transaction = begin(databases[0]);
    fdb_transaction_clear_range(transaction, bytes(KEYS), sizeof(KEYS) - 1, bytes(KEYS_END), sizeof(KEYS_END) - 1);
    OK(finish(fdb_transaction_commit(transaction)));
    fdb_transaction_reset(transaction);

    /* The network ends with a watch and a commit under way; their callbacks come before its end, or not at all. */
    struct calls calls = {.caller = pthread_self(), .has_caller = 1};
    FDBFuture *waiting = watch(transaction, KEYS "end");
    OK(finish(fdb_transaction_commit(transaction)));
    fdb_transaction_reset(transaction);
    fdb_transaction_clear_range(transaction, bytes(KEYS), sizeof(KEYS) - 1, bytes(KEYS_END), sizeof(KEYS_END) - 1);
    FDBFuture *commit = fdb_transaction_commit(transaction);
    OK(fdb_future_set_callback(waiting, count_call, &calls));
    OK(fdb_future_set_callback(commit, count_call, &calls));
    int hooks_before = hooks;
    OK(fdb_stop_network());
    CHECK(pthread_join(network_thread, NULL) == 0);
    CHECK(hooks_before == 0 && hooks == 2);
    int seen = calls.on_network;
    fdb_future_destroy(waiting);
    fdb_future_destroy(commit);
    fdb_transaction_destroy(transaction);
    CHECK(calls.on_network == seen && seen + calls.on_caller <= 2);
    CHECK(fdb_run_network() == 2025);
    fdb_database_destroy(databases[0]);
    fdb_database_destroy(databases[1]);
    return 0;
}
