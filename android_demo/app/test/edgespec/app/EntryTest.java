package edgespec.app;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;

import org.junit.Test;

public class EntryTest {
    @Test
    public void draftedPiecesBehindEachOtherAreOne() {
        Entry entry = new Entry(Entry.ANSWER, "");
        entry.append("The", false);
        entry.append(" red", true);
        entry.append(" lamp", true);
        entry.append(" is", false);
        entry.append(" on", true);
        assertEquals("The red lamp is on", entry.text.toString());
        assertArrayEquals(new int[] {3, 12, 15, 18}, entry.drafted);
        entry.copy().append(" it", true);
        assertArrayEquals("a copy is one", new int[] {3, 12, 15, 18}, entry.drafted);
    }
}
