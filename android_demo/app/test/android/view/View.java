package android.view;

import android.content.Context;
import android.graphics.drawable.Drawable;
import android.os.Looper;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;

public class View {
    /** The texts that all views have announced to screen readers. */
    public static final List<String> fakeAnnounced = new ArrayList<>();

    public interface OnClickListener {
        void onClick(View view);
    }

    public int fakeId = -1;
    public int fakeHeight;
    public int fakeMinimumWidth;
    public int fakeMinimumHeight;
    public String fakeDescription;
    protected final List<View> children = new ArrayList<>();
    private final Context context;
    private OnClickListener onClick;
    private Object tag;
    private int visibility;
    private int scrollY;

    public View(Context context) { this.context = context; }
    public final Context getContext() { return context; }
    public void setId(int id) { fakeId = id; }
    public int getId() { return fakeId; }
    public void setTag(Object tag) { this.tag = tag; }
    public Object getTag() { return tag; }
    public void setVisibility(int visibility) { this.visibility = visibility; }
    public int getVisibility() { return visibility; }
    public void setMinimumWidth(int minimum) { fakeMinimumWidth = minimum; }
    public void setMinimumHeight(int minimum) { fakeMinimumHeight = minimum; }
    public void setPadding(int left, int top, int right, int bottom) {}
    public void setBackground(Drawable background) {}
    public void setOnClickListener(OnClickListener listener) { onClick = listener; }
    public void setContentDescription(CharSequence description) { fakeDescription = description.toString(); }
    public void setAccessibilityLiveRegion(int mode) {}
    public void announceForAccessibility(CharSequence text) { fakeAnnounced.add(text.toString()); }
    public boolean post(Runnable task) { return Looper.FAKE_QUEUE.add(task); }
    public void scrollTo(int x, int y) { scrollY = y; }
    public final int getScrollY() { return scrollY; }
    public final int getHeight() { return fakeHeight; }

    /** Clicks the view, as a finger does. */
    public void fakeClick() { onClick.onClick(this); }
    public boolean fakeIsTouchable() { return onClick != null; }

    /** Returns this view or the view in it with that id, or null. */
    public View fakeFind(int wanted) {
        View found = fakeId == wanted ? this : null;
        for (int i = 0; i < children.size() && found == null; i++) {
            found = children.get(i).fakeFind(wanted);
        }
        return found;
    }

    /** Adds all visible views in here to the list, this one first. */
    public void fakeCollect(List<View> into) {
        if (visibility == 0) {
            into.add(this);
            children.forEach(child -> child.fakeCollect(into));
        }
    }

    /** Saves what the user has entered if the view has an id, as Android does. */
    public void fakeSave(Map<Integer, Object> into) { children.forEach(child -> child.fakeSave(into)); }

    public void fakeRestore(Map<Integer, Object> from) {
        children.forEach(child -> child.fakeRestore(from));
    }
}
