#ifndef KVEVICT_EXAMPLES_LM_PROSE_HPP_
#define KVEVICT_EXAMPLES_LM_PROSE_HPP_

#include <array>
#include <string_view>

// Texts that the measurements read, written for this purpose.
namespace lm {

/// Plain sentences that say nothing about each other, to hide facts in.
inline constexpr std::array<std::string_view, 36> kFiller = {
    " The ferry leaves the island twice a day in summer.",
    " Most of the bread is baked before the town wakes up.",
    " A narrow path follows the river down to the mill.",
    " The library keeps its oldest maps in flat drawers.",
    " Rain is expected over the hills towards the evening.",
    " She painted the door green and the window frames white.",
    " The market sells apples, honey and wool on Saturdays.",
    " An old tram still runs between the station and the harbour.",
    " The teacher asked the class to describe a stone.",
    " Two dogs slept in the shade of the cart.",
    " The orchestra tuned its instruments behind the curtain.",
    " Every bridge in the valley was built from the same rock.",
    " He repaired clocks in a small room above the bakery.",
    " The garden needs little water once the roots are deep.",
    " Ships used to unload salt where the cinema stands now.",
    " The soup is better on the second day.",
    " Snow covered the fields until the middle of March.",
    " A letter from the council arrived with the morning post.",
    " The museum closes early when there are no visitors.",
    " They counted the swallows on the wire before autumn.",
    " The lamp in the hall flickers when the lift moves.",
    " Nobody remembers who planted the oak beside the school.",
    " The engine was loud, but it started every time.",
    " Fishermen mend their nets on the wall near the pier.",
    " The village choir practises in the old fire station.",
    " A good knife and a clean board are all it takes.",
    " The road to the pass is closed after heavy snow.",
    " Children chalked a long train on the pavement.",
    " The baker's brother plays the accordion at weddings.",
    " Clouds gathered above the lighthouse and moved on.",
    " The last bus turns around at the sawmill.",
    " Someone had left a blue umbrella on the bench.",
    " The wheat was cut and stacked before the storm.",
    " Her notebook was full of drawings of gates.",
    " The spring behind the chapel never runs dry.",
    " A fox crossed the square at dawn and was gone.",
};

/// Connected prose of about 900 tokens, to predict token by token.
inline constexpr std::string_view kStory =
    "The harbour at Lindholm freezes late, and in some winters it does not freeze at all. When it "
    "does, the pilots walk out on the ice in pairs and drill holes every hundred metres to see how "
    "thick it is. They write the numbers on a board outside the office, where anybody can read "
    "them, and for a few weeks the whole town talks about centimetres. Children are allowed on the "
    "ice at fifteen. Cars are allowed at forty, though only two people in living memory have tried "
    "it, and one of them lost his car.\n\n"
    "Marta Holm came to the office in a mild year, when the board stayed empty until February. She "
    "had been a surveyor inland, and she knew how to measure roads, forests and the depth of "
    "wells, but she had never measured anything that moved. On her first morning the chief pilot, "
    "a tall man called Aksel, gave her a pair of boots, a thermos and a chart that was older than "
    "he was. The chart showed the channel as a thin white line between two grey shoals. Beside the "
    "line somebody had written, in pencil, the words not here any more.\n\n"
    "She asked him what that meant. He said that the sand had moved in the storm of the year "
    "before, "
    "and that the channel now lay closer to the northern shoal. The chart would be corrected in "
    "time. Until then the pilots carried the channel in their heads, and each of them carried it a "
    "little differently. When two of them disagreed, they went out in the small boat and let down "
    "a lead weight on a rope, as their grandfathers had done, and the rope decided.\n\n"
    "Marta thought about this for a week. Then she borrowed the small boat, a box of corks and a "
    "long spool of fishing line. She tied a cork to the line every ten metres and laid it across "
    "the water from one shoal to the other at slack tide, when nothing moved. At every cork she "
    "let "
    "down the weight and called the depth to a boy named Jonas, who wrote it into a school "
    "notebook. They did this along the whole channel, forty times, and it took nine days. On the "
    "tenth day she drew the bottom of the harbour on the back of a tablecloth, because the office "
    "had no paper large enough.\n\n"
    "The pilots came to look at it one after the other. None of them said much. Aksel put his "
    "finger on a place near the old breakwater and asked whether she was sure of it, and she said "
    "that she was sure of it on the day it was measured. He nodded. That evening he took a grain "
    "ship in by the new drawing, slowly, with a man at the bow calling the depths, and every depth "
    "was within a hand of what the tablecloth said. The captain of the grain ship never knew that "
    "anything unusual had happened. He complained about the price of coal and went to bed.\n\n"
    "After that the office bought paper. Every spring, when the storms were over, the channel was "
    "measured again with corks and line, and the new drawing was pinned up next to the old one, so "
    "that one could see how the sand had walked during the winter. It never walked the same way "
    "twice, but after six or seven years Marta began to see a kind of rhythm in it. When the "
    "autumn "
    "wind came from the west, the northern shoal grew and the channel leaned towards the town. "
    "When "
    "it came from the north, the shoal was cut away at its end and the sand settled inside the "
    "breakwater, where it did no harm. She wrote this down in a short report that the ministry "
    "filed and forgot, and which the pilots copied by hand and kept.\n\n"
    "Jonas, who had held the notebook, became a pilot himself. He liked to tell new people that "
    "the "
    "sea could not be known, only asked, and that one had to ask it again every year. Marta, who "
    "heard this more often than she wished, said that it was a fine thing to say but that it was "
    "not quite true. One could know a great deal, she said, if one was careful to write down the "
    "day on which one had known it.\n";

}  // namespace lm

#endif  // KVEVICT_EXAMPLES_LM_PROSE_HPP_
