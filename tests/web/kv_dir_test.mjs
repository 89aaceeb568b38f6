// kv_dir_test.mjs: a conversation that goes on after a restart. usage: node kv_dir_test.mjs BUILD [CASE]
import assert from 'node:assert/strict';
import { mkdtempSync, readdirSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { post, run, serve, until } from './support.mjs';

const dir = mkdtempSync(path.join(tmpdir(), 'duckd-kv-'));
const first = [{ role: 'user', content: 'My name is Anna. What is 7 times 8?' }];
const chat = async (server, messages) => (await post(server, '/v1/chat/completions', { messages, temperature: 0 })).json();
const files = () => readdirSync(dir).filter((name) => name.endsWith('.kv'));
const bytes = (name) => statSync(path.join(dir, name), { throwIfNoEntry: false })?.size ?? 0; // it may be replaced meanwhile
const cached = (r) => r.usage.prompt_tokens_details.cached_tokens;
let second, again;

const failed = await run({
    async 'a killed server has what was said seconds ago'() {
        const before = await serve('--kv-dir', dir);
        const one = await chat(before, first);
        const two = [...first, one.choices[0].message, { role: 'user', content: 'And 8 times 8?' }];
        await until('the first turn is written', () => files().length === 1);
        const size = bytes(files()[0]);
        const r = await chat(before, two);
        await until('the second one takes its place', () => { const [now, more] = files(); return now && !more && bytes(now) > size; });
        await before.stop('SIGKILL');
        const after = await serve('--kv-dir', dir);
        const again = await chat(after, [...two, r.choices[0].message, { role: 'user', content: 'What is my name?' }]);
        await after.stop();
        assert.ok(cached(again) >= r.usage.prompt_tokens - 1, JSON.stringify([r.usage, again.usage]));
        for (const name of files()) rmSync(path.join(dir, name));
    },
    async 'a second turn after a restart computes only what is new'() {
        const before = await serve('--kv-dir', dir);
        const r = await chat(before, first);
        second = [...first, r.choices[0].message, { role: 'user', content: 'What is my name?' }];
        assert.deepEqual(await before.stop(), { code: 0, signal: null });
        assert.equal(files().length, 1);
        assert.equal(statSync(path.join(dir, files()[0])).mode & 0o777, 0o600);
        const after = await serve('--kv-dir', dir);
        again = await chat(after, second);
        assert.ok(cached(again) > 20, JSON.stringify(again.usage));
        assert.match(again.choices[0].message.content, /Anna/);
        await after.stop();
    },
    async 'the answer is that of a server without'() {
        const plain = await serve('--kv-cache', '0');
        const r = await chat(plain, second);
        assert.equal(r.choices[0].message.content, again.choices[0].message.content);
        assert.equal(cached(r), 0);
        await plain.stop();
    },
    async 'another setting refuses the files with one line each'() {
        writeFileSync(path.join(dir, 'foreign.kv'), 'x'.repeat(1000));
        const other = await serve('--kv-dir', dir, '--kv-dtype', 'bf16');
        assert.equal(cached(await chat(other, second)), 0);
        await other.stop();
        assert.match(other.log, /foreign\.kv: no file of a KV store\n/);
        assert.match(other.log, /\.kv: belongs to another model or other settings \([0-9a-f]{16}, here [0-9a-f]{16}\)\n/);
    },
});
rmSync(dir, { recursive: true });
process.exit(failed ? 1 : 0);
