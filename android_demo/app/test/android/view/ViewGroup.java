package android.view;

import android.content.Context;
import java.awt.Graphics2D;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;

public abstract class ViewGroup extends View {
    protected final List<View> children = new ArrayList<View>();

    public ViewGroup(Context context) {
        super(context);
    }

    public static class LayoutParams {
        public static final int MATCH_PARENT = -1;
        public static final int WRAP_CONTENT = -2;

        public int width;
        public int height;

        public LayoutParams(int width, int height) {
            this.width = width;
            this.height = height;
        }
    }

    public static class MarginLayoutParams extends LayoutParams {
        public int topMargin;
        private int start;

        public MarginLayoutParams(int width, int height) {
            super(width, height);
        }

        public void setMarginStart(int start) {
            this.start = start;
        }

        public int getMarginStart() {
            return start;
        }
    }

    public void addView(View child) {
        addView(child, new LayoutParams(LayoutParams.MATCH_PARENT, LayoutParams.MATCH_PARENT));
    }

    public void addView(View child, LayoutParams params) {
        child.params = params;
        children.add(child);
    }

    public void removeViews(int start, int count) {
        children.subList(start, start + count).clear();
    }

    public void removeAllViews() {
        children.clear();
    }

    public int getChildCount() {
        return children.size();
    }

    public View getChildAt(int index) {
        return index < children.size() ? children.get(index) : null;
    }

    @Override
    public View fakeFind(int wanted) {
        View found = super.fakeFind(wanted);
        for (int i = 0; i < children.size() && found == null; i++) {
            found = children.get(i).fakeFind(wanted);
        }
        return found;
    }

    @Override
    public void fakeCollect(List<View> into) {
        if (getVisibility() == VISIBLE) {
            into.add(this);
            for (View child : children) {
                child.fakeCollect(into);
            }
        }
    }

    @Override
    public void fakeSave(Map<Integer, Object> into) {
        for (View child : children) {
            child.fakeSave(into);
        }
    }

    @Override
    public void fakeRestore(Map<Integer, Object> from) {
        for (View child : children) {
            child.fakeRestore(from);
        }
    }

    @Override
    public void fakeDraw(Graphics2D on) {
        super.fakeDraw(on);
        for (View child : children) {
            if (child.getVisibility() == VISIBLE) {
                Graphics2D own = (Graphics2D) on.create();
                own.translate(child.fakeLeft, child.fakeTop - getScrollY());
                child.fakeDraw(own);
                own.dispose();
            }
        }
    }
}
