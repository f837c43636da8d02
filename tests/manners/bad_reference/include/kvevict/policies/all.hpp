// policy: Complete | needs | - | head | at any time | none
//   | none | paper
using Complete = int;
// policy: Short | needs | paper
using Short = int;
// policy: Elsewhere | needs | - | head | at any time | none | none | paper
using Other = int;
// policy: Unknown | needs | - | head | at any time | none | none | paper
using Unknown = int;
