// Steps of recordings that are not replayed, since what they ask for is not built yet: by file and scenario their numbers, or
// 'all'. Whoever builds it takes them out.
export const later = {};
