// policy: Complete | `a[h,t,i]` | needs | - | head | at any time | none
//   | none; a cell
//     that goes on | paper
using Complete = int;
// policy: Barred | |v| | needs | - | head | at any time | none | none | paper
using Barred = int;
// policy: Short | needs | paper
using Short = int;
// policy: Elsewhere | score | needs | - | head | at any time | none | none | paper
using Other = int;
// policy: Unknown | score | needs | - | head | at any time | none | none | paper
using Unknown = int;
