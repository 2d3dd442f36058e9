// A session with node-redis, which parses every reply.  Prints a line for each part that is as it should be.
//
//     node session.mjs '{"socket": {"port": 6379}, "RESP": 3}'        the options of createClient
//
// Throws at the first part that is not.  The server is empty at the beginning.

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { createClient, ErrorReply } from '@redis/client';

const options = JSON.parse(process.argv[2]);
for (const name of ['ca', 'cert', 'key']) {
  if (options.socket[name]) options.socket[name] = readFileSync(options.socket[name]);
}

const opened = [];

async function connect(more = {}) {
  const client = createClient({ ...options, ...more, unstableResp3: true });
  client.on('error', () => {}); // told by the call that fails
  opened.push(client);
  return client.connect();
}

const client = await connect();

async function refused(promise, text) {
  await assert.rejects(promise, error => error instanceof ErrorReply && error.message.startsWith(text));
}

// The IDs of the first stream of a reply to XREAD or XREADGROUP, which in RESP3 is a map that the library leaves as it is.
function idsOf(reply) {
  return Array.isArray(reply) ? reply[0].messages.map(entry => entry.id) : Object.values(reply)[0].map(([id]) => id);
}

const parts = {
  async streams() {
    assert.equal(await client.xAdd('s', '1-1', { name: 'first entry', empty: '' }), '1-1');
    assert.equal(await client.xAdd('s', '2-*', { f: 'v' }), '2-0');
    assert.equal(await client.xLen('s'), 2);
    const [first] = await client.xRange('s', '-', '+', { COUNT: 1 });
    assert.deepEqual({ ...first.message }, { name: 'first entry', empty: '' });
    assert.deepEqual((await client.xRevRange('s', '+', '-')).map(entry => entry.id), ['2-0', '1-1']);
    assert.equal(await client.xRead({ key: 's', id: '9' }, { BLOCK: 1 }), null);
    const info = await client.xInfoStream('s');
    assert.equal(info.length, 2);
    assert.equal(info['last-entry'].id, '2-0');
    assert.equal(await client.xTrim('s', 'MAXLEN', 1), 1);
    await refused(client.xAdd('s', '1-1', { f: 'v' }), 'ERR The ID specified in XADD is equal or smaller');
  },

  async groups() {
    await client.xGroupCreate('jobs', 'g', '$', { MKSTREAM: true });
    await refused(client.xGroupCreate('jobs', 'g', '$'), 'BUSYGROUP');
    const ids = [];
    for (let number = 0; number < 5; number++) ids.push(await client.xAdd('jobs', '*', { number: `${number}` }));
    const read = await client.xReadGroup('g', 'c', { key: 'jobs', id: '>' }, { COUNT: 4 });
    assert.deepEqual(idsOf(read), ids.slice(0, 4));
    assert.equal(await client.xAck('jobs', 'g', ids[0]), 1);
    const pending = await client.xPending('jobs', 'g');
    assert.equal(pending.pending, 3);
    assert.equal(pending.consumers[0].name, 'c');
    assert.equal((await client.xPendingRange('jobs', 'g', '-', '+', 10)).length, 3);
    const claimed = await client.xClaim('jobs', 'g', 'd', 0, ids[1]);
    assert.equal(claimed[0].message.number, '1');
    const taken = await client.xAutoClaim('jobs', 'g', 'd', 0, '0-0', { COUNT: 10 });
    assert.equal(taken.messages.length, 3);
    const [group] = await client.xInfoGroups('jobs');
    assert.deepEqual([group.name, group.consumers, group.pending], ['g', 2, 3]);
    assert.deepEqual((await client.xInfoConsumers('jobs', 'g')).map(each => each.name).sort(), ['c', 'd']);
  },

  async waiting() {
    const other = await connect();
    const waiting = other.xRead({ key: 'news', id: '$' }, { BLOCK: 60_000 });
    while (!/blocked_clients:1\b/.test(await client.info('clients')));
    await client.xAdd('news', '1-1', { f: 'v' });
    assert.deepEqual(idsOf(await waiting), ['1-1']);
  },

  async transactions() {
    const replies = await client.multi().xAdd('t', '1-1', { f: 'v' }).xLen('t').exec();
    assert.deepEqual(replies, ['1-1', 1]);
    await client.watch('t');
    const other = await connect();
    await other.xAdd('t', '2-1', { f: 'v' });
    await assert.rejects(client.multi().xLen('t').exec(), /watched keys/);
  },

  async messages() {
    const subscriber = await connect();
    const heard = new Promise(resolve => subscriber.subscribe('channel', resolve));
    while (!(await client.publish('channel', 'word')));
    assert.equal(await heard, 'word');
    const seen = new Promise(resolve => subscriber.pSubscribe('n*', (message, channel) => resolve([message, channel])));
    while (!(await client.publish('news', 'word')));
    assert.deepEqual(await seen, ['word', 'news']);
    await subscriber.unsubscribe('channel');
    await subscriber.pUnsubscribe('n*');
  },

  async users() {
    assert.equal(await client.aclWhoAmI(), 'default');
    const categories = await client.aclCat();
    assert.ok(categories.includes('stream') && categories.includes('dangerous'));
    assert.ok((await client.aclCat('stream')).includes('xadd'));
    assert.match(await client.aclGenPass(), /^[0-9a-f]{64}$/);
    assert.equal((await client.aclGenPass(128)).length, 32);
    assert.equal(await client.aclSetUser('u', ['on', '>secret', 'resetchannels', '~orders:*', '+xadd', '+@connection']), 'OK');
    assert.deepEqual(await client.aclUsers(), ['default', 'u']);
    assert.ok((await client.aclList()).some(line => line.startsWith('user u on ')));
    const user = await client.aclGetUser('u');
    assert.ok([...user.flags].includes('on'));
    assert.equal(user.passwords.length, 1);
    assert.deepEqual([user.keys, user.channels, user.commands], ['~orders:*', '', '-@all +xadd +@connection']);
    assert.deepEqual([...user.selectors], []);
    assert.equal(await client.aclDryRun('u', ['XADD', 'orders:1', '*', 'f', 'v']), 'OK');
    assert.match(await client.aclDryRun('u', ['XADD', 'other', '*', 'f', 'v']), /no permissions to access the 'other' key/);
    await refused(client.aclDryRun('nobody', ['PING']), "ERR User 'nobody' not found");
    await refused(client.aclSetUser('u', '+nothing'), "ERR Error in ACL SETUSER modifier '+nothing'");
    await refused(client.aclLoad(), 'ERR This Redis instance is not configured to use an ACL file');
    await refused(client.aclSave(), 'ERR This Redis instance is not configured to use an ACL file');
  },

  async refusals() {
    assert.equal(await client.aclLogReset(), 'OK');
    const limited = await connect({ username: 'u', password: 'secret' });
    assert.equal(typeof (await limited.xAdd('orders:1', '*', { f: 'v' })), 'string');
    await refused(limited.xAdd('other', '*', { f: 'v' }), 'NOPERM');
    await refused(limited.xRange('orders:1', '-', '+'), 'NOPERM');
    await refused(client.auth({ username: 'u', password: 'wrong' }), 'WRONGPASS');
    const log = await client.aclLog();
    assert.deepEqual(log.map(entry => entry.reason), ['auth', 'command', 'key']);
    for (const entry of log) {
      for (const name of ['count', 'age-seconds', 'entry-id', 'timestamp-created', 'timestamp-last-updated']) {
        assert.equal(typeof entry[name], 'number', name);
      }
      assert.equal(entry.username, 'u');
    }
    assert.deepEqual([log[1].object, log[2].object], ['xrange', 'other']);
    assert.equal((await client.aclLog(1)).length, 1);
    const closed = new Promise(resolve => limited.once('error', resolve));
    assert.equal(await client.aclDelUser('u'), 1);
    await closed;
    limited.destroy();
  },
};

for (const [name, part] of Object.entries(parts)) {
  await part();
  console.log(name);
}
for (const each of opened) if (each.isOpen) each.destroy();
