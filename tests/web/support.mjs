// support.mjs: starts build/duckd serve for a test, talks raw HTTP, runs a table of named cases.
import { execFileSync, spawn } from 'node:child_process';
import { mkdtempSync, readFileSync, readdirSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import net from 'node:net';
import { cpus, tmpdir } from 'node:os';
import path from 'node:path';

export const build = process.argv[2];

// Starts a server on a free port; resolves when the model is loaded.
export function serve(...options) {
    return start(`${build}/duckd`, 'serve', '--listen', '127.0.0.1:0', ...options);
}

// duckling with a longer context: its own is full, and an answer over, after seconds.
export function endlessModel(positions = 1000000) {
    const from = path.resolve('models/duckling'), dir = mkdtempSync(path.join(tmpdir(), 'duckd-endless-'));
    process.on('exit', () => rmSync(dir, { recursive: true }));
    for (const name of readdirSync(from)) if (name !== 'config.json') symlinkSync(path.join(from, name), path.join(dir, name));
    const config = JSON.parse(readFileSync(path.join(from, 'config.json'), 'utf8'));
    writeFileSync(path.join(dir, 'config.json'), JSON.stringify({ ...config, max_position_embeddings: positions }));
    return dir;
}

// The server in front of a model that says what stands between [[ and ]].
export function serveScript(...options) {
    return start(`${build}/tests/scripted-server`, 'models/duckling', ...options);
}

async function start(program, ...options) {
    const server = await launch(program, ...options);
    await until('the model is loaded', async () => (await fetch(`${server.url}/health`)).status === 200, 60000);
    return server;
}

// Resolves when it listens, the model loaded or not.
export async function launch(program, ...options) {
    const child = spawn(program, options, { stdio: ['ignore', 'ignore', 'pipe'] });
    const server = { child, log: '', exited: null };
    // 'close' comes when all it said has been read, 'exit' before.
    child.on('exit', (code, signal) => { server.exited = { code, signal }; });
    const exit = new Promise((resolve) => child.on('close', (code, signal) => resolve({ code, signal })));
    child.stderr.setEncoding('utf8');
    child.stderr.on('data', (text) => { server.log += text; });
    const deadline = Date.now() + 60000;
    for (;;) {
        const found = server.log.match(/listening on (http:\/\/127\.0\.0\.1:(\d+))/);
        if (found) {
            server.url = found[1];
            server.port = Number(found[2]);
            break;
        }
        if (server.exited || Date.now() > deadline) throw new Error(`no server: ${server.log}`);
        await sleep(20);
    }
    server.ended = exit;
    server.stop = async (signal = 'SIGTERM') => {
        child.kill(signal);
        const killer = setTimeout(() => child.kill('SIGKILL'), 30000);
        const end = await exit;
        clearTimeout(killer);
        return end;
    };
    server.rss = () => Number(readFileSync(`/proc/${child.pid}/status`, 'utf8').match(/VmRSS:\s+(\d+)/)[1]) * 1024;
    return server;
}

// A clock in ms that slows down by the share of the processors which processes other than this one and the server's
// are using: on a machine with nothing else to do it is the wall clock, whatever the server does or waits for.
export function ownClock(server) {
    const tick = 1000 / Number(execFileSync('getconf', ['CLK_TCK']));
    const used = (pid) => { const f = readFileSync(`/proc/${pid}/stat`, 'utf8').replace(/.*\) /s, '').split(' '); return Number(f[11]) + Number(f[12]); };
    const others = () => { // guests' time is part of user's; idle and iowait are nobody's
        const [user, nice, system, , , irq, softirq, steal] = readFileSync('/proc/stat', 'utf8').split('\n')[0].split(/ +/).slice(1).map(Number);
        return (user + nice + system + irq + softirq + steal - used(server.child.pid) - used(process.pid)) * tick / cpus().length;
    };
    const start = { wall: performance.now(), others: others() };
    let read = start.wall, value = 0;
    return () => {
        const wall = performance.now();
        if (wall - read > 5) { // as fine as the kernel's accounts, and cheap
            read = wall;
            value = Math.max(value, wall - start.wall - (others() - start.others));
        }
        return value;
    };
}

export const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

// Deadlines are for a machine that is slow and busy; who waits for nothing loses no time by them.
export async function until(what, condition, ms = 60000) {
    const deadline = Date.now() + ms;
    while (!await condition()) {
        if (Date.now() > deadline) throw new Error(`in ${ms} ms not: ${what}`);
        await sleep(20);
    }
}

// Sends bytes as they are; resolves with all that came back when the peer has closed or `enough` says so.
export function raw(server, bytes, { enough = () => false, end = false, ms = 60000 } = {}) {
    return new Promise((resolve, reject) => {
        const socket = net.connect(server.port, '127.0.0.1');
        let got = '';
        const timer = setTimeout(() => done(new Error(`no answer in ${ms} ms, so far: ${got.slice(0, 300)}`)), ms);
        const done = (error) => {
            clearTimeout(timer);
            socket.destroy();
            if (error) reject(error); else resolve(got);
        };
        socket.setEncoding('latin1');
        socket.on('data', (text) => { got += text; if (enough(got)) done(); });
        socket.on('end', () => done());
        socket.on('error', (error) => (got ? done() : done(error)));
        for (const part of [bytes].flat()) socket.write(part);
        if (end) socket.end();
    });
}

export function post(server, path, body, options = {}) {
    return fetch(server.url + path, {
        method: 'POST',
        body: typeof body === 'string' ? body : JSON.stringify(body),
        headers: { 'content-type': 'application/json', ...options.headers },
        signal: options.signal,
    });
}

export const ask = (text, more = {}) => ({ messages: [{ role: 'user', content: text }], temperature: 0, ...more });

// The events of an SSE text, comments apart.
export function events(text) {
    return text.split('\n\n').filter((e) => e.startsWith('data: ')).map((e) => e.slice(6));
}

export async function run(cases) {
    let failed = 0;
    const only = process.argv[3];
    for (const [name, test] of Object.entries(cases)) {
        if (only && !name.includes(only)) continue;
        const start = Date.now();
        try {
            await test();
            console.log(`ok      ${name} (${Date.now() - start} ms)`);
        } catch (error) {
            failed++;
            console.log(`FAILED  ${name}\n${error.stack}`);
        }
    }
    return failed;
}
