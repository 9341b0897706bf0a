// Lists the VMs of a group and restarts one, by Azure's library for JavaScript; says as JSON, a line each, what it saw.
//
//   node restarting.cjs BASE SUBSCRIPTION GROUP VM      (the client's id and secret in the environment)
const { ComputeManagementClient } = require("@azure/arm-compute");
const { ClientSecretCredential } = require("@azure/identity");

const say = (what) => console.log(JSON.stringify(what));

async function main(base, subscription, group, vm) {
  const { AZURE_CLIENT_ID: id, AZURE_CLIENT_SECRET: secret } = process.env;
  const credential = new ClientSecretCredential("adfs", id, secret, { authorityHost: base });
  const compute = new ComputeManagementClient(credential, subscription, { endpoint: base });
  const listed = [];
  for await (const found of compute.virtualMachines.list(group)) listed.push(found.name);
  say({ listed });
  await compute.virtualMachines.beginRestartAndWait(group, vm, { updateIntervalInMs: 200 });
  say({ restarted: vm });
}

main(...process.argv.slice(2)).catch((error) => {
  say({ failed: error.message, code: error.code });
  process.exitCode = 1;
});
