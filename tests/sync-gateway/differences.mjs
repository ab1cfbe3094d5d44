// What is answered differently from Sync Gateway on purpose: by scenario, by the place of the step, why. The reasons stand in
// design/channels.md, "Differences to Sync Gateway".
export const differences = {};
