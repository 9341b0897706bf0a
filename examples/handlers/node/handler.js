#!/usr/bin/env node
// Prepares this VM for its scheduled events, approves them, and recovers when they are over:
//
//     node handler.js 'systemctl stop my-app' 'systemctl start my-app'
//
// Both commands must be harmless when they run twice. A command that fails is repeated, and nothing is approved before
// the first one has succeeded. Needs Node 18 or newer and no packages. State is kept in $STATE_DIRECTORY (systemd:
// StateDirectory=), which must survive a reboot.
'use strict';

const { spawn } = require('node:child_process');
const fs = require('node:fs');
const path = require('node:path');
const { setTimeout: sleep } = require('node:timers/promises');

const [prepareCommand, recoverCommand] = process.argv.slice(2);
const metadata = `${process.env.FOREWARN_ENDPOINT ?? 'http://169.254.169.254'}/metadata`;
const eventsUrl = `${metadata}/scheduledevents?api-version=2020-07-01`;
const stateFile = path.join(process.env.STATE_DIRECTORY ?? '.', 'handler-state.json');
const bootId = fs.readFileSync('/proc/sys/kernel/random/boot_id', 'utf8').trim();
const POLL_MS = 1000;
const TIME_LIMIT_MS = 10_000; // of a request; the service promises an answer within ten seconds
const DISRUPTIVE = new Set(['Reboot', 'Redeploy', 'Preempt', 'Terminate']);
const POLLS_UNTIL_OVER = 3; // a document may be older than the one before it

const state = readState();
const approved = new Set(); // not kept over a restart: approving twice is harmless
let me = ''; // the name of this VM
let isCommandRunning = false;
let pollsWithoutEvents = 0;

function readState() {
  try {
    const { prepareBegun, prepared, boot } = JSON.parse(fs.readFileSync(stateFile, 'utf8'));
    // What was prepared before a reboot is prepared again if its event is still to come.
    return { prepareBegun: prepareBegun === true, prepared: new Set(boot === bootId ? prepared : []) };
  } catch {
    return { prepareBegun: false, prepared: new Set() };
  }
}

function writeState() {
  const text = JSON.stringify({ prepareBegun: state.prepareBegun, prepared: [...state.prepared], boot: bootId });
  try {
    fs.writeFileSync(`${stateFile}.new`, text);
    fs.renameSync(`${stateFile}.new`, stateFile);
  } catch (error) {
    console.error(`the state is not saved: ${error.message}`); // a full disk must not stop the polls
  }
}

// Sends a request and returns the text of its answer; throws unless that is a 200 within the time limit.
async function request(url, options = {}) {
  const response = await fetch(url, {
    ...options,
    headers: { Metadata: 'true' },
    redirect: 'error',
    signal: AbortSignal.timeout(TIME_LIMIT_MS),
  });
  const text = await response.text();
  if (response.status !== 200) throw new Error(`${url} answered ${response.status}`);
  return text;
}

// Returns the events that list this VM. Throws if the answer is not a document, which says nothing about events.
async function ownEvents() {
  // The host name is not the VM's name in a scale set, so the service is asked.
  me ||= (await request(`${metadata}/instance/compute/name?api-version=2021-02-01&format=text`)).trim();
  const { Events: events } = JSON.parse(await request(eventsUrl));
  if (!Array.isArray(events)) throw new Error('the answer is not a document');
  const isMe = (name) => typeof name === 'string' && name.toLowerCase() === me.toLowerCase();
  return events.filter((event) => Array.isArray(event?.Resources) && event.Resources.some(isMe));
}

async function approve(event) {
  const body = JSON.stringify({ StartRequests: [{ EventId: event.EventId }] });
  await request(eventsUrl, { method: 'POST', body });
  approved.add(event.EventId);
  console.log(`approved ${event.EventId}`);
}

// Runs a command beside the polls, one at a time. It is repeated if it fails, because the state stays as it is.
function runCommand(command, onSuccess) {
  isCommandRunning = true;
  const child = spawn('sh', ['-c', command], { stdio: ['ignore', 'inherit', 'inherit'] });
  child.on('error', (error) => console.error(error.message));
  child.on('close', (code) => {
    isCommandRunning = false;
    if (code !== 0) return console.error(`${command} failed`);
    onSuccess();
    writeState();
  });
}

function prepareFor(events) {
  console.log(`preparing for ${events.map((event) => event.EventId).join(' ')}`);
  state.prepareBegun = true;
  writeState();
  runCommand(prepareCommand, () => events.forEach((event) => state.prepared.add(event.EventId)));
}

function recover() {
  console.log('recovering');
  runCommand(recoverCommand, () => {
    state.prepareBegun = false;
    state.prepared.clear();
  });
}

async function poll() {
  const own = await ownEvents();
  if (own.length === 0) approved.clear();
  const disruptive = own.filter((event) => DISRUPTIVE.has(event.EventType));
  pollsWithoutEvents = disruptive.length === 0 ? pollsWithoutEvents + 1 : 0;
  // Once an event has started it is too late to prepare for it.
  const due = disruptive.filter((event) => event.EventStatus === 'Scheduled' && !state.prepared.has(event.EventId));
  if (!isCommandRunning && due.length > 0) prepareFor(due);
  if (!isCommandRunning && state.prepareBegun && pollsWithoutEvents >= POLLS_UNTIL_OVER) recover();
  for (const event of own) {
    // A freeze needs no preparation. Approving an eviction would only give time away.
    const isReady = event.EventType === 'Freeze' || state.prepared.has(event.EventId);
    const isWaiting = event.EventStatus === 'Scheduled' && event.EventType !== 'Preempt';
    if (isReady && isWaiting && !approved.has(event.EventId)) await approve(event);
  }
}

async function main() {
  if (!prepareCommand || !recoverCommand) {
    console.error('usage: handler.js PREPARE RECOVER');
    process.exit(2);
  }
  for (;;) {
    await poll().catch((error) => console.error(error.message)); // no answer may end the polls
    await sleep(POLL_MS);
  }
}

main();
